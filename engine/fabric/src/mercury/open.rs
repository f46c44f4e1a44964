//! Opening an endpoint: which plugin, which address, what it can do.

use super::endpoint::MercuryEndpoint;
use super::ports::Port;
use super::progress::{Core, Parts};
use super::raw::{Raw, failure, version};
use super::{PREFIX, PROTOCOLS, remains};
use crate::endpoint::{Bind, MESSAGE_MAX, Options, own_socket};
use crate::mercury_wire::fragments::HEAD_LEN;
use crate::mercury_wire::names::Name;
use crate::{
    Ability, BufferPool, Capabilities, Endpoint, FabricError, MrAccounting, MrMode, Offer, Wait, libfabric,
};
use std::rc::Rc;
use weir_runtime::Handle;

/// Room for Mercury's own headers in a request, and ours.
const HEADERS_MAX: usize = 512;

/// Requests that Mercury has posted, and that it posts more of when all are in use. Its default of 512 is for messages
/// of a page; these are five times as long, and are copied out at once.
const POSTS: u32 = 128;

/// Largest single read or write: what one `process_vm_readv` moves is bounded by 2 GiB, `tcp` has no bound near that.
const TRANSFER_MAX: usize = 1 << 30;

/// Whether the plugin wants virtual addresses of remote memory. Mercury doesn't tell; it asks libfabric for the same
/// modes as this crate does.
fn virtual_addresses(protocol: &str) -> Result<bool, FabricError> {
    let Some(provider) = protocol.strip_prefix("ofi+") else { return Ok(true) };
    libfabric::probe(if provider == "sm" { "shm" } else { provider }).map(|found| found.mr.virt_addr)
}

fn capabilities(protocol: &str, virt_addr: bool, with_source: bool) -> Capabilities {
    let sm = !protocol.starts_with("ofi+");
    Capabilities {
        provider: format!("{PREFIX}{protocol}"),
        version: version(),
        library: format!("Mercury {}", version()),
        // Slabs of the library below are Mercury's business: what it hands out is copied.
        multi_recv: false,
        source: with_source,
        source_err: false,
        av_user_id: false,
        auth_keys: false,
        serves_auth_keys: false,
        receiver_not_ready: false,
        rma: true,
        delivery: true,
        ordered_writes: false,
        wait: Wait::Fd,
        mr: MrMode { virt_addr, ..MrMode::default() },
        mr_accounting: MrAccounting::Own,
        shared_queue: false,
        channels: false,
        mr_key_bytes: if sm { 0 } else { size_of::<u64>() },
        inject: 0,
        max_message: MESSAGE_MAX,
        max_transfer: TRANSFER_MAX,
        max_peers: None,
    }
}

/// What Mercury opens: protocol, and own host and port where the plugin has some.
pub(super) fn place(protocol: &str, bind: &Bind) -> Result<String, FabricError> {
    if !protocol.starts_with("ofi+") {
        return Ok(protocol.to_owned());
    }
    let own = own_socket(bind)?;
    let node =
        own.node.map(|node| if node.contains(':') { format!("[{node}]") } else { node }).unwrap_or_default();
    Ok(match own.service {
        Some(port) => format!("{protocol}://{node}:{port}"),
        None => format!("{protocol}://{node}"),
    })
}

/// Opens an endpoint on a Mercury protocol and has the executor drive it. `options.provider` is the protocol behind
/// [`PREFIX`]; how receive memory is posted is left to Mercury.
///
/// # Errors
/// When Mercury has no such plugin, the address is in use or not local, auth keys are asked for, or the executor is a
/// simulated one.
pub(crate) fn open(rt: &Handle, protocol: &str, options: &Options) -> Result<Rc<dyn Endpoint>, FabricError> {
    let provider = options.provider.clone();
    if !options.auth_keys.is_empty() {
        return Err(FabricError::NoAuthKeys { provider });
    }
    if let Some(device) = options.device.clone() {
        return Err(FabricError::NoDevice { device, provider });
    }
    let wrong = |call: &'static str, reason: String| FabricError::Provider {
        call,
        code: 0,
        reason,
        provider: provider.clone(),
    };
    let virt_addr = virtual_addresses(protocol)?;
    let info = place(protocol, &options.bind)?;
    if !protocol.starts_with("ofi+") {
        remains::sweep();
    }
    let raw = Raw::open(&info, MESSAGE_MAX + HEADERS_MAX, POSTS).map_err(|(_, layout)| {
        wrong("HG_Init", if layout {
            format!("Mercury {} lays memory descriptors out in a way that is not known here", version())
        } else {
            format!("it could not be opened at {info}: no such plugin, or the address is in use or not local (HG_LOG_LEVEL=error makes Mercury say more)")
        })
    })?;
    let closing = |error: FabricError| {
        // Nothing is under way yet.
        let _ = raw.close();
        error
    };
    let text = raw.own_name().map_err(|code| closing(failure("HG_Addr_self", code, &provider)))?;
    let known = Name::parse(&text).and_then(|name| name.address().ok().map(|address| (name, address)));
    let (name, address) = known
        .ok_or_else(|| closing(wrong("HG_Addr_self", format!("its address {text} is of no known form"))))?;
    let fd = raw.wait_fd();
    let fd = fd.ok_or_else(|| {
        closing(wrong("HG_Event_get_wait_fd", "there is no descriptor to sleep on".to_owned()))
    })?;
    let fragment = raw.message_max().saturating_sub(HEAD_LEN).min(MESSAGE_MAX);
    if fragment < MESSAGE_MAX / 16 {
        return Err(closing(wrong("HG_Init", format!("its requests carry only {fragment} bytes"))));
    }
    let port = match &options.bind {
        Bind::Listen { port, .. } if name.socket().is_none() => {
            // Last, so that a process that finds the port finds an endpoint that works.
            Some(Port::listen(*port, &name, &provider).map_err(closing)?)
        }
        _ => None,
    };
    let hide = options.without.contains(&Ability::Source);
    let capabilities = capabilities(protocol, virt_addr, !hide);
    tracing::info!(%address, %capabilities, "fabric endpoint opened");
    let pool = BufferPool::new(options.buffer_bytes);
    let core = Core::new(rt, Parts { raw, capabilities, name, address, pool, fragment, hide, fd });
    MercuryEndpoint::start(rt, core, port)
}

/// The protocols that are known to work, as far as this machine has them.
pub(crate) fn offers() -> Vec<Offer> {
    PROTOCOLS
        .iter()
        .map(|provider| {
            let protocol = provider.strip_prefix(PREFIX).unwrap_or(provider);
            let found = virtual_addresses(protocol).map(|virt_addr| capabilities(protocol, virt_addr, true));
            let missing = if found.is_err() { vec!["its libfabric provider"] } else { Vec::new() };
            Offer { provider: (*provider).to_owned(), capabilities: found.ok(), missing }
        })
        .collect()
}
