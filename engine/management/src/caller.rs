//! Who makes a management call, and whether it may: by the role in the certificate of the connection.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use tokio_rustls::rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;
use weir_proto::{Der, TenantId};

use crate::Failure;

/// Roles by calls, as the tests of clients in other languages read them, too.
const TABLE: &str = include_str!("../../proto/management/roles/roles.txt");

/// What the URI begins with that gives a certificate its role.
const ROLE_PREFIX: &str = "weir:role:";

/// What the URI begins with that gives a certificate its tenant.
const TENANT_PREFIX: &str = "weir:tenant:";

/// The names of the roles that may make a call.
static ROLES: LazyLock<BTreeMap<&str, Vec<&str>>> = LazyLock::new(|| {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?, words.collect()))
        })
        .collect()
});

/// What the holder of a certificate is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Makes and destroys pools: the operator, and administrators.
    Operator,
    /// Makes and destroys containers: the CSI driver.
    Provisioner,
    /// Reads what belongs to one tenant.
    TenantReader(TenantId),
    /// Reads figures.
    Metrics,
}

impl Role {
    /// The name in certificates, in the table of calls and in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Provisioner => "provisioner",
            Self::TenantReader(_) => "tenant-reader",
            Self::Metrics => "metrics",
        }
    }

    /// The URIs that give a certificate this role.
    #[must_use]
    pub fn uris(self) -> Vec<String> {
        let mut uris = vec![format!("{ROLE_PREFIX}{}", self.name())];
        if let Self::TenantReader(tenant) = self {
            uris.push(format!("{TENANT_PREFIX}{tenant}"));
        }
        uris
    }

    /// The role that the URIs of a certificate give; none when they give none, or several.
    fn of_uris<'a>(uris: impl Iterator<Item = &'a str>) -> Option<Self> {
        let (mut roles, mut tenants) = (Vec::new(), Vec::new());
        for uri in uris {
            roles.extend(uri.strip_prefix(ROLE_PREFIX));
            tenants.extend(uri.strip_prefix(TENANT_PREFIX));
        }
        let tenant = || match tenants.as_slice() {
            [number] => number.parse().ok().map(TenantId).filter(|tenant| *tenant != TenantId::SYSTEM),
            _ => None,
        };
        match roles.as_slice() {
            ["operator"] => Some(Self::Operator),
            ["provisioner"] => Some(Self::Provisioner),
            ["tenant-reader"] => tenant().map(Self::TenantReader),
            ["metrics"] => Some(Self::Metrics),
            _ => None,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TenantReader(tenant) => write!(f, "{} of tenant {tenant}", self.name()),
            _ => f.write_str(self.name()),
        }
    }
}

/// What the other end of a management connection may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    role: Option<Role>,
}

impl Caller {
    /// A caller of a role.
    #[must_use]
    pub const fn new(role: Role) -> Self {
        Self { role: Some(role) }
    }

    /// The holder of a certificate that has been verified. One without a role may do nothing.
    #[must_use]
    pub fn of_certificate(certificate: Option<&CertificateDer<'_>>) -> Self {
        let parsed = certificate.and_then(|certificate| EndEntityCert::try_from(certificate).ok());
        Self { role: parsed.and_then(|parsed| Role::of_uris(parsed.valid_uri_names())) }
    }

    /// The role, if the certificate has one.
    #[must_use]
    pub const fn role(&self) -> Option<Role> {
        self.role
    }

    /// The tenant whose things the caller may see; none when it may see those of all.
    #[must_use]
    pub const fn tenant(&self) -> Option<TenantId> {
        match self.role {
            Some(Role::TenantReader(tenant)) => Some(tenant),
            _ => None,
        }
    }

    /// Whether the caller may make a call, named `Service/Method`.
    ///
    /// # Errors
    /// Names role and call.
    pub fn permit(&self, call: &str) -> Result<(), Failure> {
        let allowed = ROLES.get(call).map(Vec::as_slice).unwrap_or_default();
        let Some(role) = self.role else {
            let message = format!(
                "the certificate has no role, and {call} needs {}: use one that the operator or `weir dev` has issued",
                allowed.join(" or ")
            );
            return Err(Failure::new(Der::NO_PERM, call, message));
        };
        if allowed.contains(&role.name()) {
            return Ok(());
        }
        let message = format!(
            "the role {role} may not call {call}: use a certificate of role {}",
            allowed.join(" or ")
        );
        Err(Failure::new(Der::NO_PERM, call, message))
    }

    /// What a caller is told that asks for a pool of somebody else. It is told the same of a pool that is not there.
    #[must_use]
    pub fn no_pool(&self, call: &str, pool: &str) -> Failure {
        let role = self.role.map_or_else(|| "none".to_owned(), |role| role.to_string());
        let message = format!(
            "the role {role} may not call {call} of pool {pool}: it belongs to somebody else, or does not exist"
        );
        Failure::new(Der::NO_PERM, format!("pool {pool}"), message)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::string::Ia5String;
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    const PROTOCOL: &str = include_str!("../../proto/management/v1/management.proto");

    const ALL: [Role; 4] =
        [Role::Operator, Role::Provisioner, Role::TenantReader(TenantId(7)), Role::Metrics];

    fn caller(uris: &[String]) -> Caller {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
        let uri = |text: &String| SanType::URI(Ia5String::try_from(text.as_str()).expect("ASCII"));
        params.subject_alt_names.extend(uris.iter().map(uri));
        let certificate = params.self_signed(&KeyPair::generate().expect("a key")).expect("a certificate");
        Caller::of_certificate(Some(certificate.der()))
    }

    /// The calls of the protocol's definition.
    fn calls() -> Vec<String> {
        let (mut service, mut calls) = ("", Vec::new());
        for line in PROTOCOL.lines() {
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (Some("service"), Some(name)) => service = name,
                (Some("rpc"), Some(rest)) => {
                    calls.extend(rest.split('(').next().map(|name| format!("{service}/{name}")));
                }
                _ => {}
            }
        }
        calls
    }

    #[test]
    fn a_certificate_has_the_role_that_its_uris_name() {
        for role in ALL {
            assert_eq!(caller(&role.uris()), Caller::new(role));
        }
        let strings = |uris: &[&str]| uris.iter().map(ToString::to_string).collect::<Vec<_>>();
        for bad in [
            &[][..],
            &["weir:role:root"],
            &["weir:role:operator", "weir:role:metrics"],
            &["weir:role:tenant-reader"],
            &["weir:role:tenant-reader", "weir:tenant:0"],
            &["weir:role:tenant-reader", "weir:tenant:7", "weir:tenant:8"],
            &["weir:role:tenant-reader", "weir:tenant:-1"],
        ] {
            assert_eq!(caller(&strings(bad)).role(), None, "{bad:?}");
        }
        assert_eq!(Caller::of_certificate(None).role(), None);
    }

    #[test]
    fn every_call_is_in_the_table_and_no_other() {
        let mut calls = calls();
        calls.sort();
        assert_eq!(calls, ROLES.keys().copied().collect::<Vec<_>>());
        let names = ALL.map(Role::name);
        assert!(ROLES.values().flatten().all(|role| names.contains(role)));
        for call in calls {
            assert_eq!(Caller::new(Role::Operator).permit(&call), Ok(()), "{call}");
        }
    }

    #[test]
    fn a_refusal_names_role_and_call() {
        let refused = Caller::new(Role::Provisioner).permit("Pools/Destroy").expect_err("not its own");
        assert_eq!(refused.code(), tonic::Code::PermissionDenied);
        assert!(refused.message.contains("role provisioner may not call Pools/Destroy"), "{refused}");
        let refused = Caller::new(Role::TenantReader(TenantId(7))).permit("Containers/Create");
        let refused = refused.expect_err("it only reads");
        assert!(refused.message.contains("tenant-reader of tenant 7 may not call Containers/Create"));
        let nobody = Caller::of_certificate(None);
        for call in calls() {
            let refused = nobody.permit(&call).expect_err("nobody");
            assert!(refused.message.contains("no role") && refused.message.contains(&call), "{refused}");
        }
        assert!(Caller::new(Role::Operator).permit("Pools/Burn").is_err());
    }
}
