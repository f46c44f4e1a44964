//! Where a management call comes from, as it is logged.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use crate::Caller;

/// The DER encoding of the object identifier of a common name (2.5.4.3; RFC 5280, appendix A).
const COMMON_NAME: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x03];

/// Longest name that is kept, in bytes: as long as a common name may be (`ub-common-name`).
const NAME_MAX: usize = 64;

/// The other end of a management connection. A request has it among its extensions.
#[derive(Clone, Debug)]
pub struct Origin {
    /// What it may do.
    pub caller: Caller,
    /// Name in its certificate; empty when that has none.
    pub name: Arc<str>,
    /// Where it is.
    pub address: SocketAddr,
}

impl Origin {
    /// The holder of a verified certificate, at an address.
    #[must_use]
    pub fn new(certificate: Option<&CertificateDer<'_>>, address: SocketAddr) -> Self {
        let parsed = certificate.and_then(|certificate| EndEntityCert::try_from(certificate).ok());
        let name = parsed.and_then(|parsed| common_name(parsed.subject())).unwrap_or_default();
        Self { caller: Caller::of_certificate(certificate), name: name.into(), address }
    }
}

/// The common name in the DER encoding of a certificate's subject. The authority has signed it, and only logs show it.
fn common_name(subject: &[u8]) -> Option<String> {
    let at = subject.windows(COMMON_NAME.len()).position(|window| window == COMMON_NAME)?;
    // The type of the text, its length and the text follow.
    let [_, len, rest @ ..] = &subject[at + COMMON_NAME.len()..] else { return None };
    let text = rest.get(..usize::from(*len)).filter(|text| text.len() <= NAME_MAX)?;
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    #[test]
    fn a_caller_has_the_name_in_its_certificate() {
        let address = "127.0.0.1:9".parse().expect("an address");
        let named = |name: Option<&str>| {
            let mut params = CertificateParams::new(Vec::new()).expect("parameters");
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(DnType::OrganizationName, "weir");
            if let Some(name) = name {
                params.distinguished_name.push(DnType::CommonName, name);
            }
            let key = KeyPair::generate().expect("a key");
            let certificate = params.self_signed(&key).expect("a certificate");
            Origin::new(Some(certificate.der()), address).name.to_string()
        };
        assert_eq!(named(Some("weir-management")), "weir-management");
        assert_eq!(named(None), "");
        assert_eq!(Origin::new(None, address).name.as_ref(), "");
    }

    #[test]
    fn what_is_no_subject_has_no_name() {
        let whole = [&COMMON_NAME[..], &[0x0c, 3], b"abc"].concat();
        assert_eq!(common_name(&whole).as_deref(), Some("abc"));
        for cut in 0..whole.len() {
            assert_eq!(common_name(&whole[..cut]), None);
        }
        let long = [&COMMON_NAME[..], &[0x0c, 200], &[b'a'; 200]].concat();
        assert_eq!(common_name(&long), None);
    }
}
