//! Names of libfabric's providers and of stacks of several.

/// Providers that have connections alone: libfabric's `ofi_rxm` makes reliable datagrams of them, and offers the two under
/// one name. `tcp` has both kinds itself, and is on such a stack for Mercury's `ofi+tcp_rxm`.
const STACKS: [(&str, &str); 2] = [("verbs", "verbs;ofi_rxm"), ("tcp_rxm", "tcp;ofi_rxm")];

/// What libfabric calls the provider that has this name in configurations.
pub(super) fn offered_as(name: &str) -> &str {
    STACKS.iter().find(|(short, _)| *short == name).map_or(name, |(_, provider_names)| provider_names)
}

/// Whether endpoints can be on the loopback interface. It has no RDMA device: a peer at loopback is reached at the
/// node's own.
pub(super) fn has_loopback(name: &str) -> bool {
    !offered_as(name).starts_with("verbs")
}

/// What to do about an error that says little: the call that failed, and libfabric's negative error number.
pub(super) fn advice(name: &str, call: &str, code: i64) -> Option<&'static str> {
    /// What fails where memory that is registered twice has one key (`verbs.h`).
    const KEEPS_REGISTRATIONS: &str = "fi_mr_reg (twice)";
    const EINVAL: i64 = -22;
    const ENOSYS: i64 = -38;
    const ENODATA: i64 = -61;
    match (call, code) {
        ("fi_domain", ENOSYS) if name == "cxi" => Some(
            "the NIC has no service for who names none: set `fabric_auth_key` (a client's attach file has it, too), or have the job's launcher give a network",
        ),
        _ if !offered_as(name).starts_with("verbs") => None,
        (KEEPS_REGISTRATIONS, _) => Some(
            "the library keeps registrations that have ended open to peers: set FI_MR_CACHE_MONITOR=disabled",
        ),
        ("fi_enable", EINVAL) => Some(
            "where the device has no completion queue of 256 entries for each of 1024 peers, set FI_UNIVERSE_SIZE to fewer",
        ),
        ("fi_getinfo", ENODATA) => Some(
            "the address has to be that of an RDMA device's network interface, and libibverbs.so.1, its driver for the device, and librdmacm.so.1 have to be installed",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_verbs_refuses_is_told_with_what_to_do() {
        let told = |name, call, code| advice(name, call, code).unwrap_or_default();
        assert!(told("verbs", "fi_mr_reg (twice)", -1).contains("FI_MR_CACHE_MONITOR"));
        assert!(told("verbs;ofi_rxm", "fi_enable", -22).contains("FI_UNIVERSE_SIZE"));
        assert!(told("verbs", "fi_getinfo", -61).contains("libibverbs.so.1"));
        assert_eq!([told("tcp", "fi_getinfo", -61), told("verbs", "fi_enable", -98)], ["", ""]);
    }

    #[test]
    fn where_no_service_is_for_everybody_the_advice_is_to_name_one() {
        let told = |name, call, code| advice(name, call, code).unwrap_or_default();
        assert!(told("cxi", "fi_domain", -38).contains("fabric_auth_key"));
        assert_eq!([told("tcp", "fi_domain", -38), told("cxi", "fi_domain", -12)], ["", ""]);
    }

    #[test]
    fn rdma_devices_are_not_on_loopback() {
        assert!(has_loopback("tcp") && has_loopback("tcp_rxm"));
        assert!(!has_loopback("verbs") && !has_loopback("verbs;ofi_rxm"));
    }

    #[test]
    fn a_provider_with_connections_alone_stands_for_the_stack_with_datagrams() {
        assert_eq!(offered_as("verbs"), "verbs;ofi_rxm");
        assert_eq!(offered_as("tcp_rxm"), "tcp;ofi_rxm");
        for name in ["tcp", "shm", "cxi", "verbs;ofi_rxm", "tcp;ofi_rxm", "nonsense"] {
            assert_eq!(offered_as(name), name, "as libfabric calls it");
        }
    }
}
