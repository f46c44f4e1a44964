//! What the library and its providers can do on this machine. Each ability is asked for separately: several
//! providers advertise what they then refuse, and some answer for another provider stacked on top.

use super::open::place;
use super::peers::ENTRIES_MAX;
use super::raw::{OpenArgs, Raw};
use super::{doorbell, raw, sys};
use crate::endpoint::{MESSAGE_MAX, Options};
use crate::{
    Ability, Address, Addressing, AuthKey, Capabilities, FabricError, Launch, MrAccounting, MrMethod, MrMode,
    Offer, Protocol, Wait, configured_client_key,
};
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

/// All registration modes that this side can live with.
const MR_MODES: u32 = sys::FI_MR_LOCAL
    | sys::FI_MR_VIRT_ADDR
    | sys::FI_MR_ALLOCATED
    | sys::FI_MR_PROV_KEY
    | sys::FI_MR_ENDPOINT;

/// What an endpoint can't do without.
const BASE: u64 = sys::FI_MSG | sys::FI_RMA;

/// The provider whose one descriptor is an epoll set inside another. For each packet the kernel walks both, which is
/// 3 % of a round trip on loopback. Other providers' descriptors are known to work.
const GAINS_BY_SET: &str = "tcp";

/// What makes up the name of an endpoint that is opened to try something, beside the process: one is open at a time.
const TRIAL: u64 = 0x7472_6961_6c00_0000;

/// The call that fails where nothing can be opened at all.
const DOMAIN: &str = "fi_domain";

/// Completions that such an endpoint has room for.
const TRIAL_QUEUE: u64 = 16;

/// What an endpoint of a provider is opened with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one flag for each ability")]
pub(super) struct ProviderFacts {
    multi_recv: bool,
    source: bool,
    source_err: bool,
    av_user_id: bool,
    auth_keys: bool,
    /// An endpoint is to serve several.
    serves_auth_keys: bool,
    delivery: bool,
    /// It has the receiver-not-ready protocol.
    receiver_not_ready: bool,
    /// An endpoint is to use it.
    turns_away: bool,
    wait: Wait,
    /// Channels are to be used where there can be some.
    channels: bool,
    /// What its addresses are: hosts and ports, names, or something of its own.
    address_form: u32,
}

impl ProviderFacts {
    /// What to ask `fi_getinfo` for.
    pub(super) fn needs(self) -> sys::Needs {
        let mut caps = BASE;
        let wanted = [
            (self.multi_recv, sys::FI_MULTI_RECV),
            (self.source, sys::FI_SOURCE),
            (self.source_err, sys::FI_SOURCE_ERR),
        ];
        for (has, bit) in wanted {
            caps |= if has { bit } else { 0 };
        }
        let domain_caps = if self.av_user_id { sys::FI_AV_USER_ID } else { 0 };
        sys::Needs { domain_caps, receiver_not_ready: self.turns_away.into(), ..plain(caps) }
    }

    /// For an endpoint with this protocol; `None`: the provider doesn't have it.
    pub(super) fn with_protocol(mut self, protocol: Protocol) -> Option<Self> {
        self.turns_away = protocol == Protocol::ReceiverNotReady;
        (self.receiver_not_ready || !self.turns_away).then_some(self)
    }

    /// The same provider without some of its abilities.
    pub(super) fn without(mut self, given_up: &[Ability]) -> Self {
        let gone = |ability| given_up.contains(&ability);
        self.multi_recv &= !gone(Ability::MultiRecv);
        self.source &= !gone(Ability::Source);
        self.source_err &= self.source && !gone(Ability::SourceErr);
        self.av_user_id &= self.source && !gone(Ability::AvUserId);
        self.delivery &= !gone(Ability::Delivery);
        self.channels &= !gone(Ability::Channels);
        if self.wait == Wait::FdSet && gone(Ability::FdSet) {
            self.wait = Wait::Fd;
        }
        self
    }

    /// Bytes that have to be left in a slab for the provider to keep it; `None` where each message has a buffer of its own.
    pub(super) fn min_multi_recv(self) -> Option<usize> {
        self.multi_recv.then_some(MESSAGE_MAX)
    }

    /// How `tcp` is opened on loopback, in tests of what is below endpoints.
    #[cfg(test)]
    pub(super) fn on_loopback(self) -> OpenArgs<'static> {
        OpenArgs {
            provider: "tcp",
            node: Some("127.0.0.1"),
            service: None,
            device: None,
            address: None,
            needs: self.needs(),
            auth_keys: &[],
            wait: self.wait,
            delivery: self.delivery,
            queue: 1024,
            min_multi_recv: self.min_multi_recv(),
            mr_method: MrMethod::default(),
        }
    }

    /// Whether the provider tells tenants apart.
    pub(super) fn has_auth_keys(self) -> bool {
        self.auth_keys
    }

    /// For an endpoint that serves several auth keys: the address vector names keys by its entries, and peers too.
    pub(super) fn with_auth_keys(mut self) -> Self {
        self.av_user_id = false;
        self.serves_auth_keys = true;
        self
    }

    /// Whether writes can be waited for until they have arrived.
    pub(super) fn delivery(self) -> bool {
        self.delivery
    }

    pub(super) fn wait(self) -> Wait {
        self.wait
    }

    /// What its addresses are: hosts and ports, names, or something of its own.
    pub(super) fn address_form(self) -> u32 {
        self.address_form
    }

    /// Whether addresses are published: where nothing leads to them from a host and a port they have to be.
    ///
    /// # Errors
    /// When they have to be, and are not to be.
    pub(super) fn publishes(self, provider: &str, addressing: Addressing) -> Result<bool, FabricError> {
        match (addressing, self.address_form == sys::ADDRESSES_FOREIGN) {
            (Addressing::Ports, true) => Err(FabricError::ForeignAddresses { provider: provider.to_owned() }),
            (addressing, is_foreign) => Ok(is_foreign || addressing == Addressing::Published),
        }
    }

    /// Whether small messages may go beside the provider: to peers that are all on this node and found by name, where messages
    /// name their senders. What says that a write has ended must not overtake it.
    fn channels(self) -> bool {
        self.channels && self.wait == Wait::Doorbell && self.source && self.delivery
    }
}

fn plain(caps: u64) -> sys::Needs {
    sys::Needs {
        caps,
        domain_caps: 0,
        mr_mode: MR_MODES,
        auth_keys: 0,
        keys: core::ptr::null(),
        key_count: 0,
        op_flags: 0,
        receiver_not_ready: 0,
        device: core::ptr::null(),
    }
}

/// The key for objects that are opened as a trial: one of those that the endpoint is to have, else what the launcher
/// gave. Where the network serves no one without a key, nothing can be opened without it.
fn trial_key(provider: &str, keys: &[AuthKey]) -> Option<AuthKey> {
    let given = || configured_client_key(None, provider, None, &Launch::from_environment()).ok().flatten();
    keys.first().copied().or_else(given)
}

/// Asks a provider for everything that matters here, with this key where it has such.
fn ask(provider: &str, key: Option<AuthKey>) -> Result<ProviderFacts, FabricError> {
    let has = |needs: sys::Needs| {
        raw::probe(provider, &needs).is_ok_and(|found| {
            found.abilities & needs.caps == needs.caps
                && found.domain & needs.domain_caps == needs.domain_caps
        })
    };
    let found = raw::probe(provider, &plain(BASE))?;
    let multi_recv = has(plain(BASE | sys::FI_MULTI_RECV));
    let base = if multi_recv { BASE | sys::FI_MULTI_RECV } else { BASE };
    let source = has(plain(base | sys::FI_SOURCE));
    let caps = if source { base | sys::FI_SOURCE } else { base };
    let facts = ProviderFacts {
        multi_recv,
        source,
        source_err: source && has(plain(caps | sys::FI_SOURCE_ERR)),
        av_user_id: source && has(sys::Needs { domain_caps: sys::FI_AV_USER_ID, ..plain(caps) }),
        auth_keys: has(sys::Needs { auth_keys: 1, ..plain(caps) }),
        serves_auth_keys: false,
        delivery: has(sys::Needs { op_flags: sys::FI_DELIVERY_COMPLETE, ..plain(caps) }),
        receiver_not_ready: has(sys::Needs { receiver_not_ready: 1, ..plain(caps) }),
        turns_away: false,
        wait: Wait::Doorbell,
        channels: true,
        address_form: found.address_form,
    };
    let key = key.filter(|_| facts.auth_keys);
    let has_user_ids = facts.av_user_id && {
        let needs = facts.needs();
        raw::probe(provider, &needs).is_ok_and(|found| takes_user_ids(provider, needs, key, &found))
    };
    let facts = ProviderFacts { av_user_id: has_user_ids, ..facts };
    let ways = if provider == GAINS_BY_SET { &[Wait::FdSet, Wait::Fd][..] } else { &[Wait::Fd] };
    for wait in ways {
        match raw::probe_wait(provider, &facts.needs(), key, *wait) {
            Ok(()) => return Ok(ProviderFacts { wait: *wait, ..facts }),
            // It has not come to what was to be tried.
            Err(error @ FabricError::Provider { call: DOMAIN, .. }) => return Err(error),
            Err(_) => {}
        }
    }
    Ok(facts)
}

/// Whether a provider takes our numbers for peers: some advertise what they refuse at the first insertion. An endpoint that
/// can't be opened for the trial counts as a refusal; doing without costs nothing but a look into a table.
fn takes_user_ids(provider: &str, needs: sys::Needs, key: Option<AuthKey>, found: &sys::Caps) -> bool {
    let name = (found.address_form == sys::ADDRESSES_NAMES).then(|| doorbell::fresh_name(TRIAL));
    let own = place(found.address_form, false, &Options::default());
    let tried = own.and_then(|own| {
        let (raw, _) = Raw::open(&OpenArgs {
            provider,
            node: own.node.as_deref(),
            service: None,
            device: None,
            address: name.as_deref(),
            needs,
            auth_keys: key.as_slice(),
            wait: Wait::Doorbell,
            delivery: false,
            queue: TRIAL_QUEUE,
            min_multi_recv: None,
            mr_method: MrMethod::default(),
        })?;
        let own = Address::from_bytes(&raw.name()?).ok_or(FabricError::UnknownPeer)?;
        raw.insert(&own, Some(0))
    });
    if let Err(error) = &tried {
        tracing::debug!(provider, %error, "the provider takes no user ids");
    }
    tried.is_ok()
}

/// The facts of a provider, for an endpoint with these keys. They don't change while the process lives, and asking takes
/// milliseconds.
pub(super) fn facts(provider: &str, keys: &[AuthKey]) -> Result<ProviderFacts, FabricError> {
    type Known = HashMap<(String, Option<AuthKey>), ProviderFacts>;
    static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
    let key = trial_key(provider, keys);
    let mut known = KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    // Where there are no keys, none makes a difference.
    let of_any = known.get(&(provider.to_owned(), None)).filter(|facts| !facts.auth_keys);
    if let Some(facts) = of_any.or_else(|| known.get(&(provider.to_owned(), key))) {
        return Ok(*facts);
    }
    let facts = ask(provider, key)?;
    known.insert((provider.to_owned(), key.filter(|_| facts.auth_keys)), facts);
    Ok(facts)
}

fn version(number: u32) -> String {
    format!("{}.{}", number >> 16, number & 0xffff)
}

/// What an offer that was found can do.
pub(super) fn capabilities(provider: &str, caps: &sys::Caps, facts: ProviderFacts) -> Capabilities {
    let bit = |bit: u32| caps.mr_mode & bit != 0;
    let size = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
    Capabilities {
        provider: provider.to_owned(),
        version: version(caps.provider_version),
        library: version(caps.library),
        multi_recv: facts.multi_recv,
        source: facts.source,
        source_err: facts.source_err,
        av_user_id: facts.av_user_id,
        auth_keys: facts.auth_keys,
        serves_auth_keys: facts.serves_auth_keys,
        receiver_not_ready: facts.receiver_not_ready,
        rma: caps.abilities & sys::FI_RMA != 0,
        delivery: facts.delivery,
        ordered_writes: caps.ordered_writes != 0,
        shared_queue: caps.shared_queue != 0,
        channels: facts.channels(),
        wait: facts.wait,
        mr: MrMode {
            local: bit(sys::FI_MR_LOCAL),
            virt_addr: bit(sys::FI_MR_VIRT_ADDR),
            prov_key: bit(sys::FI_MR_PROV_KEY),
            endpoint: bit(sys::FI_MR_ENDPOINT),
            allocated: bit(sys::FI_MR_ALLOCATED),
        },
        mr_accounting: if caps.mr_accounting != 0 { MrAccounting::Provider } else { MrAccounting::Own },
        mr_key_bytes: size(caps.mr_key_size),
        inject: size(caps.inject_size),
        max_message: MESSAGE_MAX.min(size(caps.max_message)),
        max_transfer: size(caps.max_message),
        max_peers: (facts.wait == Wait::Doorbell).then_some(ENTRIES_MAX),
    }
}

/// What a provider on this machine can do, for an endpoint with no key or the one that the launcher gave.
///
/// # Errors
/// When the library has no such provider, or it lacks what every endpoint needs: reliable datagrams with RMA, and a way to
/// sleep until something arrives.
pub fn probe(provider: &str) -> Result<Capabilities, FabricError> {
    probe_with(provider, &[])
}

/// The same for an endpoint with these keys.
pub(super) fn probe_with(provider: &str, keys: &[AuthKey]) -> Result<Capabilities, FabricError> {
    let facts = facts(provider, keys)?;
    let caps = raw::probe(provider, &facts.needs())?;
    check(provider, &caps, facts)?;
    Ok(capabilities(provider, &caps, facts))
}

/// Whether peers can be woken.
fn check(provider: &str, caps: &sys::Caps, facts: ProviderFacts) -> Result<(), FabricError> {
    if facts.wait == Wait::Doorbell && caps.address_form != sys::ADDRESSES_NAMES {
        // Doorbells are found by name, in memory that all processes of the node share.
        return Err(FabricError::Provider {
            call: "fi_cq_open",
            code: 0,
            reason: "its completion queues have no descriptor to sleep on".to_owned(),
            provider: provider.to_owned(),
        });
    }
    Ok(())
}

/// Every provider that the library offers here, stacked ones too.
///
/// # Errors
/// When the library can't be asked.
pub fn providers() -> Result<Vec<Offer>, FabricError> {
    let offers = raw::providers()?.into_iter().map(|provider| {
        let found = probe(&provider);
        let lacks = |caps: u64| raw::probe(&provider, &plain(caps)).is_err();
        let mut missing = Vec::new();
        if found.is_err() {
            let needed = [("reliable datagrams", sys::FI_MSG), ("rma", BASE)];
            missing = needed.iter().filter(|(_, caps)| lacks(*caps)).map(|(name, _)| *name).collect();
            if missing.is_empty() {
                let opens = !matches!(found, Err(FabricError::Provider { call: DOMAIN, .. }));
                missing.push(if opens { "a wait object" } else { "a domain that opens" });
            }
        }
        Offer { provider, capabilities: found.ok(), missing }
    });
    Ok(offers.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_provider_that_cannot_be_slept_on_is_refused_unless_it_is_found_by_name() {
        let socket = facts("tcp", &[]).expect("built in");
        let named = facts("shm", &[]).expect("built in");
        let of = |address_form| sys::Caps { address_form, ..sys::Caps::EMPTY };
        assert_eq!(check("tcp", &of(sys::ADDRESSES_SOCKETS), socket), Ok(()));
        assert_eq!(check("cxi", &of(sys::ADDRESSES_FOREIGN), socket), Ok(()));
        assert_eq!(check("shm", &of(sys::ADDRESSES_NAMES), named), Ok(()));
        for form in [sys::ADDRESSES_SOCKETS, sys::ADDRESSES_FOREIGN] {
            let unwakeable = check("sm2", &of(form), named);
            assert!(matches!(unwakeable, Err(FabricError::Provider { .. })), "{unwakeable:?}");
        }
    }

    #[test]
    fn addresses_that_are_no_hosts_and_ports_are_published_and_others_where_that_is_wanted() {
        let socket = facts("tcp", &[]).expect("built in");
        let foreign = ProviderFacts { address_form: sys::ADDRESSES_FOREIGN, ..socket };
        let publishes = |facts: ProviderFacts, addressing| facts.publishes("cxi", addressing);
        for (addressing, at_ports) in
            [(Addressing::ByProvider, false), (Addressing::Ports, false), (Addressing::Published, true)]
        {
            assert_eq!(publishes(socket, addressing), Ok(at_ports));
            assert_eq!(publishes(facts("shm", &[]).expect("built in"), addressing), Ok(at_ports));
        }
        for addressing in [Addressing::ByProvider, Addressing::Published] {
            assert_eq!(publishes(foreign, addressing), Ok(true));
        }
        let refused = Err(FabricError::ForeignAddresses { provider: "cxi".to_owned() });
        assert_eq!(publishes(foreign, Addressing::Ports), refused);
    }

    #[test]
    fn whether_keys_can_be_told_apart_is_one_thing_and_whether_an_endpoint_has_several_another() {
        let able = ProviderFacts { auth_keys: true, ..facts("tcp", &[]).expect("built in") };
        let told = |facts| {
            let found = capabilities("cxi", &sys::Caps::EMPTY, facts);
            (found.auth_keys, found.serves_auth_keys)
        };
        assert_eq!(told(able), (true, false), "one key or none");
        assert_eq!(told(able.with_auth_keys()), (true, true));
        assert_eq!(told(facts("tcp", &[]).expect("built in")), (false, false));
    }

    #[test]
    fn numbers_of_ours_are_an_ability_where_an_insertion_takes_one() {
        for provider in ["tcp", "shm", "tcp_rxm"] {
            let facts = facts(provider, &[]).expect("built in");
            let asked = ProviderFacts { av_user_id: true, ..facts }.needs();
            let found = raw::probe(provider, &asked);
            let takes = found.is_ok_and(|found| takes_user_ids(provider, asked, None, &found));
            assert_eq!(facts.av_user_id, takes, "{provider}");
        }
        // It says that it can, and answers "bad flags".
        let Capabilities { av_user_id, library, .. } = probe("tcp_rxm").expect("built in");
        assert!(!av_user_id || library != "2.1");
    }
}
