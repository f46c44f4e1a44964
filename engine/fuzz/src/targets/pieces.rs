//! What the transport on Mercury reads of other processes: fragments of messages, in any order and of any senders, and
//! addresses.

use crate::source::Source;
use std::collections::HashMap;
use weir_fabric::Address;
use weir_fabric::mercury_wire::fragments::{Assembly, FRAGMENTS_MAX, HEAD_LEN, Head, PARTIAL_MAX};
use weir_fabric::mercury_wire::names::Name;

/// Longest message.
const MESSAGE_MAX: usize = 200;

pub fn run(input: &[u8]) {
    if let Some((head, body)) = Head::decode(input) {
        assert_eq!([&head.encode()[..], body].concat(), input, "a head that decodes is what encodes to it");
        assert!(head.index < head.count && head.count <= FRAGMENTS_MAX);
    }
    let mut source = Source::new(input);
    assemble(&mut source);
    name(&mut source);
}

/// A message of one sender that is under way, and how many of its pieces have gone out.
struct PartlySent {
    message: Vec<u8>,
    piece: usize,
    sent: u16,
}

impl PartlySent {
    fn count(&self) -> u16 {
        u16::try_from(self.message.chunks(self.piece).count().max(1)).unwrap_or(u16::MAX)
    }
}

fn assemble(source: &mut Source<'_>) {
    let mut assembly = Assembly::default();
    let mut honest: HashMap<u32, PartlySent> = HashMap::new();
    let mut number = 0;
    for _ in 0..source.below(64) {
        if source.chance(120) {
            // Another sender, by no rules.
            let small = |source: &mut Source<'_>, limit| u16::try_from(source.below(limit)).unwrap_or(0);
            let count = if source.chance(40) { small(source, 24) } else { 1 + small(source, 3) };
            let index = if source.chance(40) { small(source, 24) } else { small(source, count.into()) };
            let head = Head { message: source.number32() % 4, index, count };
            let body = source.bytes(MESSAGE_MAX);
            let piece = [&head.encode()[..], &body].concat();
            if let Some((head, body)) = Head::decode(&piece) {
                let whole = assembly.take(1 + source.below(3), head, body, MESSAGE_MAX);
                assert!(whole.is_none_or(|whole| whole.len() <= MESSAGE_MAX), "longer than a message may be");
            } else {
                assert!(index >= count || count > FRAGMENTS_MAX, "a piece is taken for none");
            }
        } else {
            if honest.is_empty() || source.chance(60) && honest.len() < 8 {
                let message = source.bytes(MESSAGE_MAX);
                let piece = (message.len() / 4).max(1).max(HEAD_LEN);
                honest.insert(number, PartlySent { message, piece, sent: 0 });
                number += 1;
            }
            let numbers: Vec<u32> = honest.keys().copied().collect();
            send(&mut assembly, &mut honest, source.pick(&numbers));
        }
        assert!(assembly.unfinished() <= PARTIAL_MAX, "more is kept than there is room for");
    }
    // A message that was not hindered is completed.
    let numbers: Vec<u32> = honest.keys().copied().collect();
    for number in numbers {
        while honest.contains_key(&number) {
            send(&mut assembly, &mut honest, number);
        }
    }
}

/// Sends the next piece of a message that is sent by the rules, by a sender of its own.
fn send(assembly: &mut Assembly, honest: &mut HashMap<u32, PartlySent>, number: u32) {
    let Some(under_way) = honest.get_mut(&number) else { return };
    let (index, count) = (under_way.sent, under_way.count());
    under_way.sent += 1;
    let start = usize::from(index) * under_way.piece;
    let end = (start + under_way.piece).min(under_way.message.len());
    let head = Head { message: number, index, count };
    let piece = [&head.encode()[..], &under_way.message[start..end]].concat();
    let (head, body) = Head::decode(&piece).expect("a piece by the rules");
    let whole = assembly.take(0, head, body, MESSAGE_MAX);
    if under_way.sent == count {
        assert_eq!(whole.as_ref(), Some(&under_way.message), "it was sent otherwise");
        honest.remove(&number);
    } else {
        assert_eq!(whole, None, "not all of it has come");
    }
}

/// Addresses as Mercury writes them, nearly right. Only their canonical text goes to Mercury.
fn name(source: &mut Source<'_>) {
    let schemes = ["na+sm", "ofi+tcp", "ofi+verbs", ""];
    let scheme = source.pick(&schemes);
    let mut text = match source.below(3) {
        0 => format!("{scheme}://{}-{}", source.number32(), source.number32()),
        1 => format!("{scheme}://10.0.0.{}:{}", source.byte(), source.number32()),
        _ => format!("{scheme}://[::{:x}]:{}", source.byte(), source.byte()),
    }
    .into_bytes();
    for _ in 0..source.below(3) {
        let at = usize::try_from(source.below(text.len() as u64)).unwrap_or(0);
        text[at] = source.byte();
    }
    if let Some(name) = str::from_utf8(&text).ok().and_then(Name::parse) {
        let again = Name::parse(&name.text());
        assert_eq!(again.as_ref(), Some(&name), "what is written is read");
        let _ = (name.is_dead(), name.address());
    }
    let own = ["na+sm://7-0", "ofi+tcp://10.0.0.1:5"].map(|text| Name::parse(text).expect("an address"));
    let Some(address) = Address::from_bytes(&text) else { return };
    for own in own {
        if let Some(peer) = own.of_peer(&address) {
            assert!(!peer.text().contains('\0'), "{}", peer.text());
            assert!(peer.socket().is_none_or(|socket| socket.port() != 0), "{}", peer.text());
        }
    }
}
