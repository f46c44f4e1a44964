//! Senders that are not in the address vector, where the provider tells their addresses (`FI_SOURCE_ERR`).

use super::sys;
use crate::{Address, AuthKey, Source};

/// The sender of the message that a failed receive brought: the address that the provider tells, under the key that the
/// message came under where the endpoint serves several.
pub(super) fn source(failure: &sys::Failure, key: Option<AuthKey>) -> Source {
    let len = usize::try_from(failure.address_len).unwrap_or(0);
    let Some(address) = failure.address.get(..len).and_then(Address::from_bytes) else {
        return Source::Unknown;
    };
    Source::Address(Box::new(match key {
        Some(key) => address.under(key),
        None => address,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::progress::Core;
    use super::super::provider_facts;
    use super::super::raw::Raw;
    use super::*;
    use crate::endpoint::{MESSAGE_MAX, Options, ReceiveMode};
    use crate::{FabricError, Message, PeerId, Sink};
    use core::cell::RefCell;
    use std::rc::Rc;
    use weir_runtime::real::Executor;

    fn failure(address: &[u8]) -> sys::Failure {
        let mut failure = sys::Failure { code: sys::FI_EADDRNOTAVAIL, len: 40, ..sys::Failure::EMPTY };
        failure.address[..address.len()].copy_from_slice(address);
        failure.address_len = address.len() as u64;
        failure
    }

    #[test]
    fn a_strangers_address_is_met_under_the_key_of_its_message() {
        let address = Address::from_bytes(&[7; 8]).expect("short enough");
        let key = AuthKey { service: 1, vni: 100 };
        let told = failure(&[7; 8]);
        assert_eq!(source(&told, None), Source::Address(Box::new(address.clone())));
        assert_eq!(source(&told, Some(key)), Source::Address(Box::new(address.under(key))));
        assert_eq!(source(&failure(&[]), Some(key)), Source::Unknown, "the provider tells nothing");
        for address_len in [129, u64::MAX] {
            assert_eq!(source(&sys::Failure { address_len, ..failure(&[]) }, None), Source::Unknown);
        }
    }

    #[derive(Default)]
    struct Inbox(RefCell<Vec<(usize, Source)>>);

    impl Sink for Inbox {
        fn message(&self, message: Message) {
            self.0.borrow_mut().push((message.len(), message.source().clone()));
        }

        fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {}
    }

    /// An endpoint on loopback that nothing arrives at, with posted memory.
    fn endpoint(executor: &Executor, receive: ReceiveMode) -> (Rc<Core>, Rc<Inbox>) {
        let facts = provider_facts::facts("tcp", &[]).expect("built in");
        let (raw, caps) = Raw::open(&facts.on_loopback()).expect("an endpoint");
        let address = Address::from_bytes(&raw.name().expect("a name")).expect("an address");
        let options = Options { receive, ..Options::default() };
        let capabilities = provider_facts::capabilities("tcp", &caps, facts);
        let core = Core::new(&executor.handle(), raw, capabilities, address, None, &options).expect("memory");
        let inbox = Rc::new(Inbox::default());
        let weak = Rc::downgrade(&inbox);
        assert!(core.sink.set(weak).is_ok());
        core.post_slabs();
        (core, inbox)
    }

    /// What the provider would say of a stranger's message at this place of the first slab.
    fn in_first_slab(core: &Core, at: usize, failure: &sys::Failure) -> sys::Failure {
        let context = core.ops.context(0);
        let (_, lease) = core.ops.find_slab(context).expect("posted");
        let buf = lease.expect("a slab").memory().as_ptr().wrapping_add(at).cast();
        sys::Failure { context, buf, ..*failure }
    }

    #[test]
    fn a_strangers_message_arrives_with_its_address_which_makes_it_known() {
        let executor = Executor::new().expect("an executor");
        let (core, inbox) = endpoint(&executor, ReceiveMode::default());
        let unknown_source = Address::from_socket(([127, 0, 0, 1], 9).into());
        let named = || (40, Source::Address(Box::new(unknown_source.clone())));
        let posted = core.posted.get();
        core.failed(&in_first_slab(&core, 64, &failure(unknown_source.as_bytes())));
        assert_eq!((inbox.0.take(), core.posted.get()), (vec![named()], posted), "the slab goes on");
        core.failed(&in_first_slab(&core, 64, &failure(&[])));
        assert_eq!(inbox.0.take(), [(40, Source::Unknown)], "it arrives all the same");
        assert_eq!(core.counters.unknown_sources.get(), 2);
        let peer = core.insert(&unknown_source).expect("an address of this provider");
        assert_eq!(core.insert(&unknown_source), Ok(peer), "it is known now");
        let foreign = Address::from_bytes(&[7; 8]).expect("short enough");
        assert!(matches!(core.insert(&foreign), Err(FabricError::BadAddress { .. })));
        let last =
            sys::Failure { flags: sys::FI_RECV | sys::FI_MULTI_RECV, ..failure(unknown_source.as_bytes()) };
        core.failed(&in_first_slab(&core, 128, &last));
        assert_eq!((inbox.0.take(), core.posted.get()), (vec![named()], posted - 1), "with its last message");
        core.close();
    }

    #[test]
    fn what_is_no_message_or_outside_of_the_slab_is_not_taken_for_one() {
        let executor = Executor::new().expect("an executor");
        let (core, inbox) = endpoint(&executor, ReceiveMode::default());
        let told = || failure(&[7; 8]);
        let (_, slab_bytes) = ReceiveMode::default().shape();
        let wrong = [
            sys::Failure { code: sys::FI_ECANCELED, ..in_first_slab(&core, 0, &told()) },
            sys::Failure { buf: core::ptr::null_mut(), ..in_first_slab(&core, 0, &told()) },
            in_first_slab(&core, slab_bytes - 39, &told()),
            sys::Failure { len: u64::MAX, ..in_first_slab(&core, 0, &told()) },
            told(),
        ];
        for failure in &wrong {
            core.failed(failure);
        }
        assert_eq!(inbox.0.take(), []);
        core.close();
    }

    #[test]
    fn a_buffer_of_its_own_is_used_up_by_a_strangers_message() {
        let executor = Executor::new().expect("an executor");
        let (core, inbox) = endpoint(&executor, ReceiveMode::Standard { buffers: 4 });
        let unknown_source = Address::from_socket(([127, 0, 0, 1], 9).into());
        let len = MESSAGE_MAX as u64;
        // Nor does the provider say where it is.
        let whole = sys::Failure { len, buf: core::ptr::null_mut(), ..failure(unknown_source.as_bytes()) };
        core.failed(&sys::Failure { context: core.ops.context(0), ..whole });
        assert_eq!(inbox.0.take(), [(MESSAGE_MAX, Source::Address(Box::new(unknown_source)))]);
        assert_eq!(core.posted.get(), 3);
        core.close();
    }
}
