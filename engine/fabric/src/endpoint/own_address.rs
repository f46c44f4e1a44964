//! The local address that an endpoint with a host and a port is opened at.

use super::options::Bind;
use crate::error::FabricError;
use crate::naming::resolve;
use std::net::{IpAddr, SocketAddr, UdpSocket};

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
