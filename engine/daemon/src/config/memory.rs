//! Settings of one word: how memory is posted for messages and registered for peers, and how peers are found.

use weir_fabric::{Addressing, MrMethod, Protocol, ReceiveMode};

use super::{ConfigError, invalid};

pub(super) fn mr_method(text: Option<&str>) -> Result<MrMethod, ConfigError> {
    let Some(text) = text else { return Ok(MrMethod::default()) };
    let hint = "use match-events, uncached, optimized, persistent or key-cache";
    MrMethod::from_name(text).ok_or_else(|| invalid("memory_registration", text, hint))
}

pub(super) fn protocol(text: Option<&str>, provider: &str) -> Result<Protocol, ConfigError> {
    let Some(text) = text else { return Ok(Protocol::Usual) };
    match Protocol::from_name(text) {
        None => Err(invalid("fabric_protocol", text, "use default or receiver-not-ready")),
        Some(Protocol::ReceiverNotReady) if provider != "cxi" => {
            let hint =
                format!("the {provider} provider has its own protocol only; leave it away, or use cxi");
            Err(invalid("fabric_protocol", text, &hint))
        }
        Some(protocol) => Ok(protocol),
    }
}

pub(super) fn addressing(text: Option<&str>, provider: &str) -> Result<Addressing, ConfigError> {
    let Some(text) = text else { return Ok(Addressing::ByProvider) };
    let invalid = |hint: &str| Err(invalid("fabric_addresses", text, hint));
    match Addressing::from_name(text) {
        None => invalid("use ports or published, or leave it to the provider"),
        Some(Addressing::Ports) if provider == "cxi" => {
            invalid("addresses of cxi are no hosts and ports; leave it away, or use published")
        }
        Some(Addressing::Published) if provider.starts_with("mercury/") => {
            invalid("addresses of Mercury can't be published; leave it away")
        }
        Some(addressing) => Ok(addressing),
    }
}

pub(super) fn receive_mode(text: Option<&str>) -> Result<ReceiveMode, ConfigError> {
    match text {
        None | Some("multi") => Ok(ReceiveMode::default()),
        Some("standard") => Ok(ReceiveMode::standard()),
        Some(other) => Err(invalid("receive_mode", other, "use multi or standard")),
    }
}
