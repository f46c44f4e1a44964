//! Counters of a drive about itself: NVMe's SMART / health information log.

/// Bytes of the log page (NVM Express Base Specification 2.0, figure 207).
pub(crate) const LOG_BYTES: usize = 512;

/// Bits of the critical warning that say that the drive can't be relied on: reliability degraded by media errors, and
/// media read-only.
const UNRELIABLE: u8 = 0b0000_1100;

/// Bytes of one unit in which a drive counts what was read and written: a thousand sectors of 512 bytes.
const DATA_UNIT: u64 = 512_000;

/// What a drive counts about itself since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wear {
    /// Bits of the critical warning: 0 spare below its threshold, 1 temperature, 2 reliability degraded, 3 read-only,
    /// 4 volatile memory backup failed, 5 persistent memory unreliable.
    pub critical_warning: u8,
    /// Temperature of the whole drive in kelvins.
    pub temperature: u16,
    /// Spare capacity that is left, in percent.
    pub spare: u8,
    /// Spare capacity below which the drive warns, in percent.
    pub spare_threshold: u8,
    /// Life that is used up, in percent of what the maker expects; may pass 100, and 255 stands for more.
    pub used: u8,
    /// Bytes that hosts have written.
    pub written_bytes: u64,
    /// Bytes that hosts have read.
    pub read_bytes: u64,
    /// Hours under power.
    pub power_on_hours: u64,
    /// Power losses without notice.
    pub unsafe_shutdowns: u64,
    /// Times when data could not be recovered.
    pub media_errors: u64,
}

impl Wear {
    /// Understands the log page; `None` when it is shorter than one.
    #[must_use]
    pub fn parse(page: &[u8]) -> Option<Self> {
        let page = page.get(..LOG_BYTES)?;
        // Counters are 16 bytes long; none gets past 8 within the life of a drive.
        let counter = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap_or_default());
        Some(Self {
            critical_warning: page[0],
            temperature: u16::from_le_bytes([page[1], page[2]]),
            spare: page[3],
            spare_threshold: page[4],
            used: page[5],
            read_bytes: counter(32).saturating_mul(DATA_UNIT),
            written_bytes: counter(48).saturating_mul(DATA_UNIT),
            power_on_hours: counter(128),
            unsafe_shutdowns: counter(144),
            media_errors: counter(160),
        })
    }

    /// What makes the drive one to be replaced now, if anything.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        (self.critical_warning & UNRELIABLE != 0).then(|| {
            let what = if self.critical_warning & 0b1000 == 0 {
                "its reliability is degraded by media errors"
            } else {
                "its media are read-only"
            };
            format!("the drive itself reports that {what} (critical warning {:#04x})", self.critical_warning)
        })
    }

    /// What makes the drive one to look after, if anything.
    #[must_use]
    pub fn suspicion(&self) -> Option<String> {
        if self.critical_warning != 0 {
            return Some(format!(
                "the drive reports critical warning {:#04x} with {} % of its spare left (it warns below {} %) at {} K",
                self.critical_warning, self.spare, self.spare_threshold, self.temperature
            ));
        }
        (self.used >= 100).then(|| format!("the drive has used up {} % of its expected life", self.used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_page_is_understood_and_judged() {
        let mut page = vec![0; LOG_BYTES];
        (page[1], page[2]) = (0x43, 0x01);
        (page[3], page[4], page[5]) = (100, 10, 3);
        page[48] = 2;
        page[160] = 7;
        let wear = Wear::parse(&page).expect("long enough");
        assert_eq!((wear.temperature, wear.used, wear.spare, wear.media_errors), (323, 3, 100, 7));
        assert_eq!(wear.written_bytes, 1_024_000);
        assert_eq!((wear.fault(), wear.suspicion()), (None, None));
        assert!(Wear::parse(&page[1..]).is_none());
        let worn = Wear { used: 104, ..wear };
        assert!(worn.suspicion().is_some_and(|reason| reason.contains("104 %")) && worn.fault().is_none());
        let hot = Wear { critical_warning: 2, ..wear };
        assert!(hot.suspicion().is_some() && hot.fault().is_none());
        for (warning, words) in [(4, "degraded"), (8, "read-only")] {
            let bad = Wear { critical_warning: warning, ..wear };
            assert!(bad.fault().is_some_and(|reason| reason.contains(words)), "{warning}");
        }
    }
}
