//! Error numbers (DER) that clients, engines and the C interface share.

use serde::{Deserialize, Serialize};

macro_rules! der {
    ($($number:literal $name:ident),* $(,)?) => {
        impl Der {
            $(
                #[doc = concat!("`DER_", stringify!($name), "` = ", stringify!($number), ".")]
                pub const $name: Self = Self($number);
            )*

            /// The name without its `DER_` prefix; `None` for a number that has no name.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }

            /// Every named code, lowest number first.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

/// A positive DER number. The C interface returns its negative.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Der(pub u32);

der! {
    1001 NO_PERM,
    1002 NO_HDL,
    1003 INVAL,
    1004 EXIST,
    1005 NONEXIST,
    1006 UNREACH,
    1007 NOSPACE,
    1008 ALREADY,
    1009 NOMEM,
    1010 NOSYS,
    1011 TIMEDOUT,
    1012 BUSY,
    1013 AGAIN,
    1014 PROTO,
    1015 UNINIT,
    1016 TRUNC,
    1017 OVERFLOW,
    1018 CANCELED,
    1019 OOG,
    1020 HG,
    1021 UNREG,
    1022 ADDRSTR_GEN,
    1023 PMIX,
    1024 IVCB_FORWARD,
    1025 MISC,
    1026 BADPATH,
    1027 NOTDIR,
    1028 CORPC_INCOMPLETE,
    1029 NO_RAS_RANK,
    1030 NOTATTACH,
    1031 MISMATCH,
    1032 EXCLUDED,
    1033 NOREPLY,
    1034 DOS,
    1035 BAD_TARGET,
    1036 GRPVER,
    1037 HLC_SYNC,
    1038 NO_SHMEM,
    1039 ADD_METRIC_FAILED,
    1040 DURATION_MISMATCH,
    1041 OP_NOT_PERMITTED,
    1042 EXCEEDS_PATH_LEN,
    1043 METRIC_NOT_FOUND,
    1044 SHMEM_PERMS,
    1045 HG_FATAL,
    1046 QUOTA_LIMIT,
    2001 IO,
    2002 FREE_MEM,
    2003 ENOENT,
    2004 NOTYPE,
    2005 NOSCHEMA,
    2006 NOLOCAL,
    2007 STALE,
    2008 NOTLEADER,
    2009 TGT_CREATE,
    2010 EP_RO,
    2011 EP_OLD,
    2012 KEY2BIG,
    2013 REC2BIG,
    2014 IO_INVAL,
    2015 EQ_BUSY,
    2016 DOMAIN,
    2017 SHUTDOWN,
    2018 INPROGRESS,
    2019 NOTAPPLICABLE,
    2020 NOTREPLICA,
    2021 CSUM,
    2022 DF_INVAL,
    2023 DF_INCOMPT,
    2024 REC_SIZE,
    2025 TX_RESTART,
    2026 DATA_LOSS,
    2027 OP_CANCELED,
    2028 TX_BUSY,
    2029 AGENT_INCOMPAT,
    2030 NEED_TX,
    2031 RF,
    2032 FETCH_AGAIN,
    2033 TX_UNCERTAIN,
    2034 AGENT_COMM,
    2035 ID_MISMATCH,
    2036 TGT_RETRY,
    2037 NOTSUPPORTED,
    2038 CONTROL_INCOMPAT,
    2039 NO_SERVICE,
    2040 TX_ID_REUSED,
    2041 UPDATE_AGAIN,
    2042 NVME_IO,
    2043 NO_CERT,
    2044 BAD_CERT,
    2045 VOS_PARTIAL_UPDATE,
    2046 CHKPT_BUSY,
    2047 DIV_BY_ZERO,
    2048 OVERLOAD_RETRY,
    2049 NOT_RESUME,
    2050 CONT_NONEXIST,
    2051 CONT_DESTROYING,
    2052 IGNORE,
    501_000 UNKNOWN,
}

impl Der {
    /// Whether a refusal is about the moment, not about the request: the server starts, stops, is overloaded, is about
    /// to have room, or needs another engine that is away. The same request may succeed soon.
    #[must_use]
    pub const fn is_passing(self) -> bool {
        matches!(
            self,
            Self::AGAIN
                | Self::INPROGRESS
                | Self::OVERLOAD_RETRY
                | Self::SHUTDOWN
                | Self::UNREACH
                | Self::TIMEDOUT
                | Self::NO_SERVICE
                | Self::UPDATE_AGAIN
        )
    }

    /// The lasting error that replaces a refusal about the moment when the moment has lasted longer than any caller
    /// waits.
    #[must_use]
    pub const fn lasting(self) -> Option<Self> {
        match self {
            Self::UPDATE_AGAIN => Some(Self::NOSPACE),
            _ => None,
        }
    }

    /// The errno a POSIX caller sees (facts: `daos_der2errno`); what has no counterpart is `EIO`.
    #[must_use]
    pub const fn to_errno(self) -> i32 {
        match self {
            Self::NO_PERM | Self::EP_RO | Self::EP_OLD | Self::CONT_DESTROYING => 1,
            Self::ENOENT | Self::NONEXIST => 2,
            Self::INVAL | Self::NOTYPE | Self::NOSCHEMA | Self::NOLOCAL | Self::NO_HDL | Self::IO_INVAL => 22,
            Self::KEY2BIG | Self::REC2BIG => 7,
            Self::EXIST => 17,
            Self::UNREACH => 113,
            Self::NOSPACE => 28,
            Self::ALREADY => 114,
            Self::DOS | Self::NOMEM => 12,
            Self::TIMEDOUT => 110,
            Self::BUSY | Self::EQ_BUSY => 16,
            Self::AGAIN => 11,
            Self::PROTO => 71,
            Self::CANCELED => 125,
            Self::OVERFLOW => 75,
            Self::BADPATH | Self::NOTDIR => 20,
            Self::STALE => 116,
            Self::TX_RESTART => 85,
            Self::NOTSUPPORTED => 95,
            Self::QUOTA_LIMIT => 122,
            _ => 5,
        }
    }
}

impl core::fmt::Display for Der {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.name() {
            Some(name) => write!(f, "DER_{name}({})", self.0),
            None => write!(f, "DER({})", self.0),
        }
    }
}

impl core::fmt::Debug for Der {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_named_once_and_in_order() {
        assert!(Der::ALL.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(Der::NOSPACE.to_string(), "DER_NOSPACE(1007)");
        assert_eq!(Der(9).to_string(), "DER(9)");
    }

    #[test]
    fn what_is_about_the_moment_is_told_from_what_is_about_the_request() {
        assert!(
            [Der::INPROGRESS, Der::SHUTDOWN, Der::UNREACH, Der::OVERLOAD_RETRY]
                .iter()
                .all(|der| der.is_passing())
        );
        // To these, other requests than the same one are the answer.
        assert!(![Der::TX_RESTART, Der::STALE, Der::GRPVER, Der::NVME_IO].iter().any(|der| der.is_passing()));
    }

    #[test]
    fn container_nonexist_has_no_errno_of_its_own() {
        assert_eq!(Der::NONEXIST.to_errno(), 2);
        assert_eq!(Der::CONT_NONEXIST.to_errno(), 5);
    }
}
