//! Authorization keys of networks that keep tenants apart themselves: a Slingshot service and virtual network id (VNI).
//!
//! A client has one key, a server's endpoint a block of them, all of which are known before it is enabled. Keys come
//! from the configuration, or from what the job's launcher put in the environment (`SLINGSHOT_*`).

use core::fmt;
use serde::{Deserialize, Serialize};

/// Most keys of one endpoint: the VNIs that one Slingshot service can be given.
pub const AUTH_KEYS_MAX: usize = 128;

/// The provider that has auth keys.
const SLINGSHOT: &str = "cxi";

/// The specification that takes everything from the launcher.
const FROM_LAUNCHER: &str = "0:0";

/// The specification that takes nothing from it either.
const NONE: &str = "none";

/// A virtual network, and the service through which it is reached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct AuthKey {
    /// The NIC's service: a set of local resources, VNIs and traffic classes.
    pub service: u32,
    /// The virtual network id; never 0.
    pub vni: u16,
}

impl fmt::Display for AuthKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.service, self.vni)
    }
}

/// Keys can't be told from a specification or from the environment.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AuthKeyError {
    /// The specification.
    #[error(
        "\"{0}\" is no auth key: write service:vni, service:vni:last for a block, or 0:0 for what the launcher gave"
    )]
    Form(String),
    /// A block that is empty or too large.
    #[error("the block of VNIs {first} to {last} is empty or larger than {AUTH_KEYS_MAX}")]
    Block {
        /// Its first VNI.
        first: u16,
        /// Its last.
        last: u16,
    },
    /// More keys than an endpoint can have.
    #[error(
        "{variable}=\"{value}\" has more than {AUTH_KEYS_MAX} VNIs; name a block of them in the configuration"
    )]
    TooMany {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },
    /// The environment has no such list.
    #[error("{0} is not set; ask the job's launcher for a VNI, or name service and VNI in the configuration")]
    Missing(&'static str),
    /// A list of the environment is not one.
    #[error("{variable}=\"{value}\" is not a comma-separated list of numbers")]
    List {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },
    /// The device is not among those that the launcher gave.
    #[error("device {device} is not in SLINGSHOT_DEVICES=\"{given}\"")]
    Device {
        /// The device.
        device: String,
        /// Those given.
        given: String,
    },
}

/// What a job's launcher gives each of its processes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Launch {
    /// `SLINGSHOT_VNIS`: the job's virtual networks.
    pub vnis: Option<String>,
    /// `SLINGSHOT_DEVICES`: the NICs that the job may use.
    pub devices: Option<String>,
    /// `SLINGSHOT_SVC_IDS`: the service to use on each of them.
    pub services: Option<String>,
}

impl Launch {
    /// What this process was given.
    #[must_use]
    pub fn from_environment() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        Self {
            vnis: variable("SLINGSHOT_VNIS"),
            devices: variable("SLINGSHOT_DEVICES"),
            services: variable("SLINGSHOT_SVC_IDS"),
        }
    }

    fn numbers<T: core::str::FromStr>(
        variable: &'static str,
        value: Option<&String>,
    ) -> Result<Vec<T>, AuthKeyError> {
        let value = value.filter(|value| !value.is_empty()).ok_or(AuthKeyError::Missing(variable))?;
        let parsed = value.split(',').map(|number| number.trim().parse().ok()).collect();
        Option::ok_or(parsed, AuthKeyError::List { variable, value: value.clone() })
    }

    /// The service for a device; the first one when no device is named.
    fn service(&self, device: Option<&str>) -> Result<u32, AuthKeyError> {
        let services = Self::numbers::<u32>("SLINGSHOT_SVC_IDS", self.services.as_ref())?;
        let at = match device {
            None => 0,
            Some(device) => {
                let given = self.devices.as_deref().ok_or(AuthKeyError::Missing("SLINGSHOT_DEVICES"))?;
                let found = given.split(',').position(|name| name.trim() == device);
                found.ok_or_else(|| AuthKeyError::Device {
                    device: device.to_owned(),
                    given: given.to_owned(),
                })?
            }
        };
        services.get(at).copied().ok_or(AuthKeyError::Missing("SLINGSHOT_SVC_IDS"))
    }

    fn vnis(&self) -> Result<Vec<u16>, AuthKeyError> {
        let variable = "SLINGSHOT_VNIS";
        let vnis = Self::numbers(variable, self.vnis.as_ref())?;
        let value = || self.vnis.clone().unwrap_or_default();
        if vnis.contains(&0) {
            return Err(AuthKeyError::List { variable, value: value() });
        }
        if vnis.len() > AUTH_KEYS_MAX {
            return Err(AuthKeyError::TooMany { variable, value: value() });
        }
        Ok(vnis)
    }

    /// What a process that nothing tells otherwise does on this provider: on Slingshot it takes what it was given.
    fn default_for(&self, provider: &str) -> Option<&'static str> {
        let given = self.vnis.as_ref().is_some_and(|vnis| !vnis.is_empty());
        (provider == SLINGSHOT && given).then_some(FROM_LAUNCHER)
    }
}

/// The numbers of a specification: service, VNI, and what follows.
fn parts(text: &str) -> Result<(u32, u16, Option<u16>), AuthKeyError> {
    let wrong = || AuthKeyError::Form(text.to_owned());
    let mut fields = text.split(':').map(str::trim);
    let service = fields.next().and_then(|field| field.parse().ok()).ok_or_else(wrong)?;
    let vni = fields.next().and_then(|field| field.parse().ok()).ok_or_else(wrong)?;
    let more = fields.next().map(|field| field.parse().map_err(|_| wrong())).transpose()?;
    if fields.next().is_some() { Err(wrong()) } else { Ok((service, vni, more)) }
}

/// A client's key: `service:vni[:index]`. Zeros stand for what the launcher gave for this device; `index` says which of
/// its VNIs, the first one by default.
///
/// # Errors
/// When the text is none, or the launcher gave nothing.
pub fn client_key(text: &str, launch: &Launch, device: Option<&str>) -> Result<AuthKey, AuthKeyError> {
    let (service, vni, index) = parts(text)?;
    let service = if service == 0 { launch.service(device)? } else { service };
    let vni = if vni == 0 {
        let vnis = launch.vnis()?;
        *vnis.get(usize::from(index.unwrap_or(0))).ok_or(AuthKeyError::Missing("SLINGSHOT_VNIS"))?
    } else {
        vni
    };
    Ok(AuthKey { service, vni })
}

/// A server's keys: `service:first[:last]`, a block of VNIs. Zeros stand for what the launcher gave.
///
/// # Errors
/// When the text is none, the block is empty or too large, or the launcher gave nothing.
pub fn server_keys(text: &str, launch: &Launch, device: Option<&str>) -> Result<Vec<AuthKey>, AuthKeyError> {
    let (service, first, last) = parts(text)?;
    let service = if service == 0 { launch.service(device)? } else { service };
    let vnis = if first == 0 {
        launch.vnis()?
    } else {
        let last = last.unwrap_or(first);
        if last < first || usize::from(last - first) >= AUTH_KEYS_MAX {
            return Err(AuthKeyError::Block { first, last });
        }
        (first..=last).collect()
    };
    Ok(vnis.into_iter().map(|vni| AuthKey { service, vni }).collect())
}

/// The specification that holds: what is configured, else what the launcher gave on a network with auth keys.
fn specified<'a>(configured: Option<&'a str>, provider: &str, launch: &Launch) -> Option<&'a str> {
    configured.or(launch.default_for(provider)).filter(|text| *text != NONE)
}

/// The key of a client that is configured like this: see [`client_key`]. Nothing configured means what the launcher
/// gave, on `cxi`, and no key elsewhere; "none" means no key.
///
/// # Errors
/// When the specification is none, or the launcher gave nothing.
pub fn configured_client_key(
    configured: Option<&str>,
    provider: &str,
    device: Option<&str>,
    launch: &Launch,
) -> Result<Option<AuthKey>, AuthKeyError> {
    specified(configured, provider, launch).map(|text| client_key(text, launch, device)).transpose()
}

/// The NIC for a process's endpoints: the one that is configured, else on `cxi` the first that the launcher gave, which is
/// the one whose service the keys have. `None` leaves it to the provider.
#[must_use]
pub fn configured_device(configured: Option<&str>, provider: &str, launch: &Launch) -> Option<String> {
    let given = launch.devices.as_deref().filter(|_| provider == SLINGSHOT);
    let first = given.and_then(|devices| devices.split(',').next());
    configured.or(first).map(|device| device.trim().to_owned()).filter(|device| !device.is_empty())
}

/// The keys of a server that is configured like this: see [`server_keys`] and [`configured_client_key`].
///
/// # Errors
/// When the specification is none, the block is empty or too large, or the launcher gave nothing.
pub fn configured_server_keys(
    configured: Option<&str>,
    provider: &str,
    device: Option<&str>,
    launch: &Launch,
) -> Result<Vec<AuthKey>, AuthKeyError> {
    specified(configured, provider, launch).map_or(Ok(Vec::new()), |text| server_keys(text, launch, device))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(vnis: &str, devices: &str, services: &str) -> Launch {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Launch { vnis: given(vnis), devices: given(devices), services: given(services) }
    }

    #[test]
    fn what_is_named_is_taken_and_zeros_come_from_the_launcher() {
        let given = launch("1042,1043", "cxi0,cxi1", "5,6");
        let client = |text, device| client_key(text, &given, device);
        assert_eq!(client("7:9", None), Ok(AuthKey { service: 7, vni: 9 }));
        assert_eq!(client("0:0", Some("cxi1")), Ok(AuthKey { service: 6, vni: 1042 }));
        assert_eq!(client("0:0:1", Some("cxi0")), Ok(AuthKey { service: 5, vni: 1043 }));
        assert_eq!(client("0:9", None), Ok(AuthKey { service: 5, vni: 9 }));
        let vnis = |keys: Vec<AuthKey>| keys.iter().map(|key| key.vni).collect::<Vec<_>>();
        assert_eq!(server_keys("3:100:103", &given, None).map(vnis), Ok(vec![100, 101, 102, 103]));
        assert_eq!(server_keys("0:0", &given, Some("cxi0")).map(vnis), Ok(vec![1042, 1043]));
        // Reading it once leaves it unchanged for the next reader.
        assert_eq!(given, launch("1042,1043", "cxi0,cxi1", "5,6"));
    }

    #[test]
    fn what_can_not_be_told_is_said() {
        let given = launch("1042", "cxi0", "5");
        for text in ["", "1", "a:b", "1:2:3:4", "1:70000"] {
            assert_eq!(client_key(text, &given, None), Err(AuthKeyError::Form(text.to_owned())), "{text}");
        }
        let nothing = Launch::default();
        assert_eq!(client_key("0:1", &nothing, None), Err(AuthKeyError::Missing("SLINGSHOT_SVC_IDS")));
        assert_eq!(client_key("1:0", &nothing, None), Err(AuthKeyError::Missing("SLINGSHOT_VNIS")));
        assert_eq!(client_key("1:0:1", &given, None), Err(AuthKeyError::Missing("SLINGSHOT_VNIS")));
        assert!(matches!(client_key("0:0", &given, Some("cxi3")), Err(AuthKeyError::Device { .. })));
        assert!(matches!(client_key("1:0", &launch("x", "", ""), None), Err(AuthKeyError::List { .. })));
        assert_eq!(server_keys("1:5:4", &given, None), Err(AuthKeyError::Block { first: 5, last: 4 }));
        assert!(matches!(server_keys("1:1:129", &given, None), Err(AuthKeyError::Block { .. })));
    }

    #[test]
    fn the_launchers_keys_are_taken_on_slingshot_unless_the_configuration_says_otherwise() {
        let given = launch("1042,1043", "cxi0", "5");
        let client = |text, provider, launch: &Launch| configured_client_key(text, provider, None, launch);
        let key = |service, vni| Ok(Some(AuthKey { service, vni }));
        assert_eq!(client(None, "cxi", &given), key(5, 1042));
        assert_eq!(client(None, "tcp", &given), Ok(None), "no network that would know what to do with it");
        assert_eq!(client(None, "cxi", &Launch::default()), Ok(None), "the provider chooses");
        assert_eq!(client(Some("none"), "cxi", &given), Ok(None));
        assert_eq!(client(Some("7:9"), "cxi", &given), key(7, 9));
        assert_eq!(client(Some("7:9"), "tcp", &given), key(7, 9));
        let server = |text, provider| {
            let keys = configured_server_keys(text, provider, None, &given)?;
            Ok(keys.into_iter().map(|key| key.vni).collect::<Vec<_>>())
        };
        assert_eq!(server(None, "cxi"), Ok(vec![1042, 1043]));
        assert_eq!(server(Some("3:7:9"), "cxi"), Ok(vec![7, 8, 9]));
        assert_eq!(server(Some("none"), "cxi"), Ok(vec![]));
        assert_eq!(server(None, "tcp"), Ok(vec![]));
        assert_eq!(server(Some("x"), "tcp"), Err(AuthKeyError::Form("x".to_owned())));
    }

    #[test]
    fn the_endpoint_is_on_the_nic_whose_service_its_keys_have() {
        let given = launch("1042", "cxi2,cxi3", "5,6");
        let device = |configured, provider| configured_device(configured, provider, &given);
        assert_eq!(device(None, "cxi"), Some("cxi2".to_owned()));
        assert_eq!(client_key("0:0", &given, None).map(|key| key.service), Ok(5), "the same one's");
        assert_eq!(device(Some("cxi3"), "cxi"), Some("cxi3".to_owned()));
        assert_eq!(device(None, "tcp"), None, "the launcher's names are another network's");
        assert_eq!(device(Some("lo"), "tcp"), Some("lo".to_owned()));
        assert_eq!(configured_device(None, "cxi", &Launch::default()), None);
        assert_eq!(configured_device(None, "cxi", &launch("", "", "")), None);
    }

    #[test]
    fn a_launchers_list_with_no_network_in_it_or_too_many_is_refused() {
        assert!(matches!(server_keys("1:0", &launch("5,0", "", ""), None), Err(AuthKeyError::List { .. })));
        let many: Vec<String> = (1..=129).map(|vni: u16| vni.to_string()).collect();
        let many = launch(&many.join(","), "", "");
        assert!(matches!(server_keys("1:0", &many, None), Err(AuthKeyError::TooMany { .. })));
    }
}
