//! Opening an endpoint: which provider, which address, what it can do.

use super::bell::{self, Bell};
use super::door::Door;
use super::endpoint::{LibfabricEndpoint, Published};
use super::progress::Core;
use super::raw::{OpenArgs, Raw};
use super::survey::Facts;
use super::{raw, resolve, stack, survey, sys};
use crate::published::Teller;
use crate::{
    Ability, Address, Addressing, AuthKey, Endpoint, FabricError, MrMethod, POOL_BYTES_DEFAULT, Protocol,
    Wait,
};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::rc::Rc;
use weir_runtime::Handle;

/// Largest message: an inline body of 16 KiB with header, greeting and bulk descriptors (18.6 KiB), in whole pages.
pub(crate) const MESSAGE_MAX: usize = 20 << 10;

/// Depth of the completion queue: every operation that the credits of a thousand peers allow.
const QUEUE: u64 = 32 * 1024;

/// The same for a client: its own requests and what they are answered by, many times over.
const CLIENT_QUEUE: u64 = 4096;

/// Where an endpoint is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Bind {
    /// On this host address and port: a server. `0.0.0.0` and `::` stand for the address of the default route (a pod's
    /// only one), because an endpoint has to know the one address that peers find it at.
    Listen {
        /// Own address or name.
        host: String,
        /// Port.
        port: u16,
    },
    /// On the local address from which this host is reached: a client of that server.
    Near {
        /// Any server's address or name.
        host: String,
        /// Its port.
        port: u16,
    },
    /// On the local address of the default route: a client.
    Any,
}

/// How receive memory is posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceiveMode {
    /// A buffer of the largest message's size for each message: for providers without multi-receive, and to compare.
    Standard {
        /// How many are posted.
        buffers: usize,
    },
    /// Large slabs, each for many messages.
    Multi {
        /// How many, at least two.
        slabs: usize,
        /// Length of each in bytes: holds dozens of the largest messages and thousands of small ones.
        slab_bytes: usize,
    },
}

/// Buffers posted in standard mode (Mercury: 512 requests): 16 MiB.
pub(super) const STANDARD_BUFFERS: usize = 512;

impl Default for ReceiveMode {
    fn default() -> Self {
        Self::Multi { slabs: 4, slab_bytes: 1 << 20 }
    }
}

impl ReceiveMode {
    /// Slabs of a client, which gets no more than answers: together 1 MiB, as much as the inline bodies of all requests that
    /// it has under way by default (64 of 16 KiB).
    #[must_use]
    pub const fn of_client() -> Self {
        Self::Multi { slabs: 4, slab_bytes: 256 << 10 }
    }

    /// Standard receives with the usual number of buffers.
    #[must_use]
    pub const fn standard() -> Self {
        Self::Standard { buffers: STANDARD_BUFFERS }
    }

    /// Number and length of the buffers that are to be posted.
    pub(super) fn shape(self) -> (usize, usize) {
        match self {
            Self::Standard { buffers } => (buffers.max(1), MESSAGE_MAX.next_power_of_two()),
            Self::Multi { slabs, slab_bytes } => {
                (slabs.max(2), slab_bytes.max(2 * MESSAGE_MAX).next_power_of_two())
            }
        }
    }
}

/// Settings of an endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The provider's name: `tcp`, `shm`, `verbs`, `cxi`, or what libfabric calls a stack of several.
    pub provider: String,
    /// Where to be reached.
    pub bind: Bind,
    /// The NIC, as libfabric names its domain: `cxi1`, `mlx5_0`, on `tcp` the network interface. None leaves it to the provider.
    pub device: Option<String>,
    /// Bound of the buffer pool in bytes.
    pub buffer_bytes: usize,
    /// How receive memory is posted.
    pub receive: ReceiveMode,
    /// Messages are copied out of their slab while no more than this many slabs are posted, so that slow requests
    /// can't pin the last ones.
    pub copy_below: usize,
    /// Abilities that are not used although the provider has them: around a provider's defect, and to see what they
    /// are worth.
    pub without: Vec<Ability>,
    /// How memory is registered for peers.
    pub mr_method: MrMethod,
    /// Registrations of memory that are kept for the next exposure of the same memory, at most; 0 keeps none. Worth it
    /// where registering calls into the kernel. Memory of the application is kept only where the kernel tells when it is
    /// freed or remapped.
    pub mr_cache: usize,
    /// Auth keys: none leaves it to the provider, a client has one, a server as many as its clients have together.
    pub auth_keys: Vec<AuthKey>,
    /// How messages are sent, where the provider has several ways.
    pub protocol: Protocol,
    /// Whether listening endpoints are at the port that is configured, or at an address that is told there.
    pub addressing: Addressing,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            provider: "tcp".to_owned(),
            bind: Bind::Any,
            device: None,
            buffer_bytes: POOL_BYTES_DEFAULT,
            receive: ReceiveMode::default(),
            copy_below: 1,
            without: Vec::new(),
            mr_method: MrMethod::default(),
            mr_cache: 0,
            auth_keys: Vec::new(),
            protocol: Protocol::Usual,
            addressing: Addressing::ByProvider,
        }
    }
}

impl Options {
    /// A server's endpoint.
    #[must_use]
    pub fn listen(provider: &str, host: &str, port: u16) -> Self {
        let bind = Bind::Listen { host: host.to_owned(), port };
        Self { provider: provider.to_owned(), bind, ..Self::default() }
    }

    /// A client's endpoint, on the interface that leads to this server.
    #[must_use]
    pub fn near(provider: &str, host: &str, port: u16) -> Self {
        let bind = Bind::Near { host: host.to_owned(), port };
        let receive = ReceiveMode::of_client();
        Self { provider: provider.to_owned(), bind, receive, ..Self::default() }
    }
}

/// The local address from which packets to `to` leave; nothing is sent.
fn route(to: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    socket.local_addr().ok().map(|local| local.ip()).filter(|ip| !ip.is_unspecified())
}

/// The local address of the default route, found through addresses that are set aside for documentation (RFC 5737,
/// RFC 3849); loopback on a machine without a network. IPv4 goes first unless it is not wanted.
fn default_ip(v6_first: bool) -> IpAddr {
    let v4 = || route(([192, 0, 2, 1], 9).into());
    let v6 = || route(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 9).into());
    let found = if v6_first { v6().or_else(v4) } else { v4().or_else(v6) };
    found.unwrap_or(IpAddr::from([127, 0, 0, 1]))
}

/// Own host address and port, as text for `fi_getinfo`.
pub(crate) struct Own {
    pub(crate) node: Option<String>,
    pub(crate) service: Option<String>,
}

/// Where an endpoint is to be opened, whose provider has addresses of this form. One whose address is published may be at any
/// port, and where a NIC is named at that NIC's own address. A provider with addresses of its own chooses by the NIC.
pub(super) fn place(form: u32, published: bool, options: &Options) -> Result<Own, FabricError> {
    if form != sys::ADDRESSES_SOCKETS || published && options.device.is_some() {
        return Ok(Own { node: None, service: None });
    }
    let own = own_socket(&options.bind)?;
    Ok(if published { Own { service: None, ..own } } else { own })
}

/// Finds the own address for providers with socket addresses.
pub(crate) fn own_socket(bind: &Bind) -> Result<Own, FabricError> {
    match bind {
        Bind::Listen { host, port } => {
            let ip = resolve::blocking(host, *port)?.ip();
            let ip = if ip.is_unspecified() { default_ip(ip.is_ipv6()) } else { ip };
            Ok(Own { node: Some(ip.to_string()), service: Some(port.to_string()) })
        }
        Bind::Near { host, port } => {
            let to = resolve::blocking(host, *port).ok();
            let ip = to.and_then(route).unwrap_or_else(|| default_ip(false));
            Ok(Own { node: Some(ip.to_string()), service: None })
        }
        Bind::Any => Ok(Own { node: Some(default_ip(false).to_string()), service: None }),
    }
}

/// Those of the keys that an endpoint of this provider can have: all, or none where the provider has no auth keys. Then
/// only authentication codes keep tenants apart, which the log says.
#[must_use]
pub fn usable_keys(provider: &str, keys: Vec<AuthKey>) -> Vec<AuthKey> {
    let lacks = provider.starts_with("mercury/")
        || survey::facts(provider, &keys).is_ok_and(|facts| !facts.has_auth_keys());
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
    survey::probe_with(&options.provider, &options.auth_keys).map_err(advise)?;
    let facts = survey::facts(&options.provider, &options.auth_keys)?.without(&options.without);
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
    let (mut name, mut bell) = (None, None);
    if wait == Wait::Doorbell {
        bell::sweep();
        let fresh = bell::fresh_name(rt.random_u64());
        bell = Some(Bell::new(&fresh)?);
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
    // Last, so that whoever finds the port finds an endpoint that works.
    let teller = match (&options.bind, &mut bell) {
        (Bind::Listen { host, port }, _) if published => Some(Teller::start(host, *port, &options.provider)?),
        (Bind::Listen { port, .. }, Some(bell)) => {
            bell.listen(*port)?;
            None
        }
        _ => None,
    };
    let is_foreign = facts.address_form() == sys::ADDRESSES_FOREIGN;
    let spelled = if is_foreign { raw.spell(&address) } else { None };
    let spelled = spelled.unwrap_or_else(|| address.to_string());
    let published = published.then(|| Published::new(&options.provider, caps.address_format, teller));
    let mut capabilities = survey::capabilities(&options.provider, &caps, facts);
    if options.without.contains(&Ability::Inject) {
        capabilities.inject = 0;
    }
    if let Some(bell) = bell.as_ref().filter(|_| capabilities.channels) {
        bell.welcome_channels();
    }
    tracing::info!(
        address = spelled, published = published.is_some(), %capabilities, "fabric endpoint opened"
    );
    let is_server = matches!(options.bind, Bind::Listen { .. });
    let door = address.socket().filter(|_| is_server).map(Door::new);
    let core = Core::new(rt, raw, capabilities, address, bell, options)?;
    LibfabricEndpoint::start(rt, core, spelled, published, door)
}

/// A NIC that is asked for has to be there: where it isn't, the provider's own answer is only that it offers nothing like that.
fn check_device(options: &Options, facts: Facts) -> Result<(), FabricError> {
    match &options.device {
        Some(device) if !raw::has_device(&options.provider, &facts.needs(), device)? => {
            Err(FabricError::NoDevice { device: device.clone(), provider: options.provider.clone() })
        }
        _ => Ok(()),
    }
}

/// The keys have to be no more than an endpoint can have: the provider's own answer is the same as above.
fn check_keys(options: &Options, facts: Facts) -> Result<(), FabricError> {
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
            let advice = stack::advice(&provider, call, code).map(|advice| format!("; {advice}"));
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
