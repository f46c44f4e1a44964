//! Which of libfabric's providers a name stands for.

/// Providers that have connections alone: libfabric's `ofi_rxm` makes reliable datagrams of them, and offers the two under
/// one name. `tcp` has both kinds itself, and is on such a stack for Mercury's `ofi+tcp_rxm`.
const STACKS: [(&str, &str); 2] = [("verbs", "verbs;ofi_rxm"), ("tcp_rxm", "tcp;ofi_rxm")];

/// What libfabric calls the provider that has this name in configurations.
pub(super) fn offered_as(name: &str) -> &str {
    STACKS.iter().find(|(short, _)| *short == name).map_or(name, |(_, stack)| stack)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_with_connections_alone_stands_for_the_stack_with_datagrams() {
        assert_eq!(offered_as("verbs"), "verbs;ofi_rxm");
        assert_eq!(offered_as("tcp_rxm"), "tcp;ofi_rxm");
        for name in ["tcp", "shm", "cxi", "verbs;ofi_rxm", "tcp;ofi_rxm", "nonsense"] {
            assert_eq!(offered_as(name), name, "as libfabric calls it");
        }
    }
}
