//! The endpoint of a context on the real fabric.

use std::rc::Rc;

use weir_fabric::{Endpoint, MrMethod, Protocol, ReceiveMode, libfabric};
use weir_runtime::Handle;

use crate::attach::Attach;

/// Environment variable with the method that memory is registered by ([`MrMethod::name`]).
pub const REGISTRATION_VARIABLE: &str = "WEIR_MEMORY_REGISTRATION";

/// Names the protocol of the provider; engines and clients must use the same.
pub const PROTOCOL_VARIABLE: &str = "WEIR_FABRIC_PROTOCOL";

/// Environment variable with the number of registrations that a context keeps for its next requests; none unless set.
pub const REGISTRATIONS_KEPT_VARIABLE: &str = "WEIR_REGISTRATIONS_KEPT";

/// How messages are sent, which must be as engines do.
fn protocol() -> core::result::Result<Protocol, String> {
    match std::env::var(PROTOCOL_VARIABLE) {
        Ok(name) => Protocol::from_name(&name).ok_or_else(|| {
            format!(
                "{PROTOCOL_VARIABLE}={name} is no protocol; use default or receiver-not-ready, as engines do"
            )
        }),
        Err(_) => Ok(Protocol::Usual),
    }
}

/// How memory is registered for engines: a method, and how many registrations are kept for the next request.
fn registration() -> core::result::Result<(MrMethod, usize), String> {
    let method = match std::env::var(REGISTRATION_VARIABLE) {
        Ok(name) => MrMethod::from_name(&name)
            .ok_or_else(|| format!("{REGISTRATION_VARIABLE}={name} is no registration method; unset it"))?,
        Err(_) => MrMethod::default(),
    };
    let kept = match std::env::var(REGISTRATIONS_KEPT_VARIABLE) {
        Ok(text) => text
            .parse()
            .map_err(|_| format!("{REGISTRATIONS_KEPT_VARIABLE}={text} is no number; unset it"))?,
        Err(_) => 0,
    };
    Ok((method, kept))
}

/// Opens an endpoint on the interface that leads to the first engine whose name is known here; when none is, as while
/// all engines are away, on the interface of the default route.
pub(super) fn open_endpoint(
    attach: &Attach,
    runtime: &Handle,
) -> core::result::Result<Rc<dyn Endpoint>, String> {
    let (mr_method, mr_cache) = registration()?;
    let protocol = protocol()?;
    let auth_keys = libfabric::usable_keys(&attach.provider, attach.auth_key.into_iter().collect());
    for engine in &attach.engines {
        let near = weir_fabric::Options::near(&attach.provider, &engine.host, engine.fabric_port);
        let (auth_keys, device) = (auth_keys.clone(), attach.device.clone());
        let addressing = attach.addressing;
        let options =
            weir_fabric::Options { auth_keys, device, mr_method, mr_cache, protocol, addressing, ..near };
        if let Ok(endpoint) = weir_fabric::open(runtime, &options) {
            return Ok(endpoint);
        }
    }
    let provider = attach.provider.clone();
    let options = weir_fabric::Options {
        provider,
        auth_keys,
        device: attach.device.clone(),
        mr_method,
        mr_cache,
        protocol,
        addressing: attach.addressing,
        receive: ReceiveMode::of_client(),
        ..weir_fabric::Options::default()
    };
    weir_fabric::open(runtime, &options).map_err(|error| error.to_string())
}
