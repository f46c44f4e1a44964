//! Ranges of keys in words: what is below a node that can't be read is known by the bounds that its parent gives, which are
//! beginnings of keys.

use crate::codec::{Decoder, Malformed};
use crate::key;
use std::fmt::Write as _;
use weir_proto::ObjectId;

/// Most bytes of a bound that are shown as they are.
const REST_MAX: usize = 48;

fn kind_name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        key::POOL => "pools",
        key::CONTAINER => "containers",
        key::USAGE => "usage",
        key::ATTRIBUTE => "attributes",
        key::OBJECT => "objects",
        key::SNAPSHOT => "snapshots",
        key::TRANSACTION => "transactions",
        _ => return None,
    })
}

/// As much of a key's beginning as is there, and as makes sense.
fn append(bound: &[u8], text: &mut String) -> Result<(), Malformed> {
    let mut at = Decoder::new(bound);
    let kind = at.u8()?;
    text.push_str(kind_name(kind).ok_or(Malformed("a key is of unknown kind"))?);
    let number = |name: &str, at: &mut Decoder<'_>, text: &mut String| -> Result<(), Malformed> {
        let number = u32::from_be_bytes(at.array()?);
        let _ = write!(text, " {name} {number}");
        Ok(())
    };
    number("pool", &mut at, text)?;
    if matches!(kind, key::POOL | key::ATTRIBUTE) {
        return Ok(());
    }
    number("container", &mut at, text)?;
    if kind != key::OBJECT {
        return Ok(());
    }
    let object = ObjectId::from_bytes(at.array()?);
    let _ = write!(text, " object {object}");
    for (name, integer) in
        [("dkey", key::has_integer_dkeys(object)), ("akey", key::has_integer_akeys(object))]
    {
        if at.u8()? != key::BELOW {
            return Ok(());
        }
        let key = key::take_key(&mut at, integer)?;
        let _ = write!(text, " {name} \"{key}\"");
    }
    Ok(())
}

fn bound_text(bound: &[u8]) -> String {
    let mut text = String::new();
    // What it lacks is behind what is shown.
    let _ = append(bound, &mut text);
    text.push_str(" (key ");
    bound.iter().take(REST_MAX).for_each(|byte| {
        let _ = write!(text, "{byte:02x}");
    });
    text.push_str(if bound.len() > REST_MAX { "…)" } else { ")" });
    text
}

/// The entries from a bound up to another one.
#[must_use]
pub fn describe(low: &[u8], high: Option<&[u8]>) -> String {
    let from = if low.is_empty() { "the first one".to_owned() } else { bound_text(low) };
    let to =
        high.map_or_else(|| "the last one".to_owned(), |high| format!("those before {}", bound_text(high)));
    format!("the entries from {from} to {to}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Path;
    use proptest::prelude::*;
    use weir_proto::Key;

    #[test]
    fn a_range_says_between_what_entries_are_missing() {
        let dkey = Key::new(b"d4").expect("a key");
        let below = Path::object(1, 2, ObjectId { hi: 0, lo: 7 }).dkey(&dkey);
        let text = describe(b"", Some(&below.event(5)));
        assert!(text.starts_with(
            "the entries from the first one to those before objects pool 1 container 2 object 0.7"
        ));
        assert!(text.contains("dkey \"d4\" (key 05"), "{text}");
        let text = describe(&[key::POOL, 0, 0, 0, 3], None);
        assert!(text.ends_with("from pools pool 3 (key 0100000003) to the last one"), "{text}");
    }

    proptest! {
        #[test]
        fn any_bounds_are_described(
            low in proptest::collection::vec(0u8..9, 0..70), high in proptest::collection::vec(any::<u8>(), 0..70)
        ) {
            prop_assert!(!describe(&low, Some(&high)).is_empty());
        }
    }
}
