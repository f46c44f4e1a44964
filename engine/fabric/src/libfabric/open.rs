//! Opening an endpoint: which provider, which address, what it can do.

use super::connection_limit::ConnectionLimit;
use super::doorbell::{self, Doorbell};
use super::endpoint::{LibfabricEndpoint, Published};
use super::progress::Core;
use super::provider_facts::ProviderFacts;
use super::raw::{OpenArgs, Raw};
use super::{provider_facts, provider_names, raw, sys};
use crate::address::{Address, AuthKey};
use crate::endpoint::{Ability, Bind, Endpoint, Options, Own, Wait, own_socket};
use crate::error::FabricError;
use crate::naming::Publisher;
use std::rc::Rc;
use weir_runtime::Handle;

/// Depth of the completion queue: every operation that the credits of a thousand peers allow.
const QUEUE: u64 = 32 * 1024;

/// The same for a client: its own requests and what they are answered by, many times over.
const CLIENT_QUEUE: u64 = 4096;

/// Where an endpoint is to be opened, whose provider has addresses of this form. One whose address is published may be at any
/// port, and where a NIC is named at that NIC's own address. A provider with addresses of its own chooses by the NIC.
pub(super) fn place(form: u32, published: bool, options: &Options) -> Result<Own, FabricError> {
    if form != sys::ADDRESSES_SOCKETS || published && options.device.is_some() {
        return Ok(Own { node: None, service: None });
    }
    let own = own_socket(&options.bind)?;
    Ok(if published { Own { service: None, ..own } } else { own })
}

/// Those of the keys that an endpoint of this provider can have: all, or none where the provider has no auth keys. Then
/// only authentication codes keep tenants apart, which the log says.
#[must_use]
pub fn usable_keys(provider: &str, keys: Vec<AuthKey>) -> Vec<AuthKey> {
    let lacks = provider.starts_with("mercury/")
        || provider_facts::facts(provider, &keys).is_ok_and(|facts| !facts.has_auth_keys());
    if keys.is_empty() || !lacks {
        return keys;
    }
    tracing::warn!(
        provider,
        keys = keys.len(),
        "the provider has no auth keys: those configured are not used, authentication codes keep tenants apart"
    );
    Vec::new()
}

/// Opens an endpoint and has the executor drive it.
///
/// # Errors
/// When the provider is missing, the address is in use or not local, or the executor is a simulated one.
pub fn open(rt: &Handle, options: &Options) -> Result<Rc<dyn Endpoint>, FabricError> {
    provider_facts::probe_with(&options.provider, &options.auth_keys).map_err(advise)?;
    let facts = provider_facts::facts(&options.provider, &options.auth_keys)?.without(&options.without);
    if !options.auth_keys.is_empty() && !facts.has_auth_keys() {
        return Err(FabricError::NoAuthKeys { provider: options.provider.clone() });
    }
    let facts = facts
        .with_protocol(options.protocol)
        .ok_or_else(|| FabricError::NoProtocol { provider: options.provider.clone() })?;
    let facts = if options.auth_keys.len() > 1 { facts.with_auth_keys() } else { facts };
    let published = facts.publishes(&options.provider, options.addressing)?;
    let wait = facts.wait();
    let own = place(facts.address_form(), published, options)?;
    let (mut name, mut doorbell) = (None, None);
    if wait == Wait::Doorbell {
        doorbell::sweep();
        let fresh = doorbell::fresh_name(rt.random_u64());
        doorbell = Some(Doorbell::new(&fresh)?);
        name = Some(fresh);
    }
    let args = OpenArgs {
        provider: &options.provider,
        node: own.node.as_deref(),
        service: own.service.as_deref(),
        device: options.device.as_deref(),
        address: name.as_deref(),
        needs: facts.needs(),
        auth_keys: &options.auth_keys,
        wait,
        delivery: facts.delivery(),
        queue: if matches!(options.bind, Bind::Listen { .. }) { QUEUE } else { CLIENT_QUEUE },
        min_multi_recv: facts.min_multi_recv(),
        mr_method: options.mr_method,
    };
    let (raw, caps) = Raw::open(&args).map_err(|error| {
        let known = check_device(options, facts).and_then(|()| check_keys(options, facts));
        known.err().unwrap_or_else(|| explain(error, &own, options.device.as_deref()))
    })?;
    let name = raw.name()?;
    let address = Address::from_bytes(&name).ok_or_else(|| FabricError::BadAddress {
        address: format!("an own address of {} bytes", name.len()),
        provider: options.provider.clone(),
    })?;
    // Last, so that a process that finds the port finds an endpoint that works.
    let at_port = match (&options.bind, &mut doorbell) {
        (Bind::Listen { host, port }, _) if published => {
            Some(Publisher::start(host, *port, &options.provider)?)
        }
        (Bind::Listen { port, .. }, Some(doorbell)) => {
            doorbell.listen(*port)?;
            None
        }
        _ => None,
    };
    let is_foreign = facts.address_form() == sys::ADDRESSES_FOREIGN;
    let spelled = if is_foreign { raw.spell(&address) } else { None };
    let spelled = spelled.unwrap_or_else(|| address.to_string());
    let published = published.then(|| Published::new(&options.provider, caps.address_format, at_port));
    let mut capabilities = provider_facts::capabilities(&options.provider, &caps, facts);
    if options.without.contains(&Ability::Inject) {
        capabilities.inject = 0;
    }
    if let Some(doorbell) = doorbell.as_ref().filter(|_| capabilities.channels) {
        doorbell.welcome_channels();
    }
    tracing::info!(
        address = spelled, published = published.is_some(), %capabilities, "fabric endpoint opened"
    );
    let is_server = matches!(options.bind, Bind::Listen { .. });
    let connection_limit = address.socket().filter(|_| is_server).map(ConnectionLimit::new);
    let core = Core::new(rt, raw, capabilities, address, doorbell, options)?;
    LibfabricEndpoint::start(rt, core, spelled, published, connection_limit)
}

/// A NIC that is asked for has to be there: where it isn't, the provider's own answer is only that it offers nothing like that.
fn check_device(options: &Options, facts: ProviderFacts) -> Result<(), FabricError> {
    match &options.device {
        Some(device) if !raw::has_device(&options.provider, &facts.needs(), device)? => {
            Err(FabricError::NoDevice { device: device.clone(), provider: options.provider.clone() })
        }
        _ => Ok(()),
    }
}

/// The keys have to be no more than an endpoint can have: the provider's own answer is the same as above.
fn check_keys(options: &Options, facts: ProviderFacts) -> Result<(), FabricError> {
    let (provider, given) = (&options.provider, options.auth_keys.len());
    let takes = |count: usize| {
        let auth_keys = u32::try_from(count).unwrap_or(u32::MAX);
        raw::probe(provider, &sys::Needs { auth_keys, ..facts.needs() }).is_ok()
    };
    if given <= 1 || takes(given) {
        return Ok(());
    }
    let max = (1..given).take_while(|count| takes(*count)).last().unwrap_or_default();
    Err(FabricError::TooManyKeys { provider: provider.clone(), given, max })
}

/// Says what to do when a provider's refusal doesn't.
fn advise(error: FabricError) -> FabricError {
    match error {
        FabricError::Provider { call, code, reason, provider } => {
            let advice = provider_names::advice(&provider, call, code).map(|advice| format!("; {advice}"));
            let reason = reason + &advice.unwrap_or_default();
            FabricError::Provider { call, code, reason, provider }
        }
        error => error,
    }
}

/// Says which address and NIC it was about when the provider refused.
fn explain(error: FabricError, own: &Own, device: Option<&str>) -> FabricError {
    match error {
        FabricError::Provider { call, code, reason, provider } => {
            let host = own.node.as_deref().unwrap_or("this node");
            let port = own.service.as_deref().unwrap_or("any port");
            let on = device.map(|device| format!(", on {device}")).unwrap_or_default();
            let reason = format!("{reason}, at {host}, {port}{on}");
            advise(FabricError::Provider { call, code, reason, provider })
        }
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_and_a_port_are_asked_for_where_addresses_are_such_and_known_beforehand() {
        let placed = |form, published, device: Option<&str>| {
            let device = device.map(str::to_owned);
            let options = Options { device, ..Options::listen("any", "127.0.0.1", 10_100) };
            let Own { node, service } = place(form, published, &options).expect("an address");
            (node, service)
        };
        let host = || Some("127.0.0.1".to_owned());
        let port = Some("10100".to_owned());
        assert_eq!(placed(sys::ADDRESSES_SOCKETS, false, None), (host(), port.clone()));
        assert_eq!(placed(sys::ADDRESSES_SOCKETS, false, Some("lo")), (host(), port));
        assert_eq!(placed(sys::ADDRESSES_SOCKETS, true, None), (host(), None));
        assert_eq!(placed(sys::ADDRESSES_SOCKETS, true, Some("lo")), (None, None), "the NIC's own address");
        for device in [None, Some("cxi1")] {
            assert_eq!(
                placed(sys::ADDRESSES_FOREIGN, true, device),
                (None, None),
                "what cxi makes of its NIC"
            );
        }
        assert_eq!(placed(sys::ADDRESSES_NAMES, false, None), (None, None));
        // Nothing is looked up that isn't used.
        let options = Options::near("cxi", "no.such.host.invalid", 1);
        assert!(place(sys::ADDRESSES_FOREIGN, true, &options).is_ok());
    }
}
