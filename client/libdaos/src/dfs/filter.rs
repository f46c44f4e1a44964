//! Filters of directory entries, which the client applies.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use weir_dfs::{Node, Stat};

use super::{handle_of, mounted, pointer};
use crate::boundary::required;
use crate::errno::{Errno, checked};
use crate::handle::{self, Opened};
use crate::types::dfs_predicate_t;

/// What a filter looks at (`DFS_FILTER_*`).
const NAME: u64 = 1 << 1;
const NEWER: u64 = 1 << 2;
const INCLUDE_DIRECTORIES: u64 = 1 << 3;

const SECOND: i64 = 1_000_000_000;

/// What entries have to be.
pub struct Filter {
    name: Option<Vec<u8>>,
    newer: Option<i64>,
    takes_directories: bool,
}

impl Filter {
    /// Whether times are looked at.
    pub fn asks_time(&self) -> bool {
        self.newer.is_some()
    }

    /// Whether an entry passes; `stat` is there if the filter asks for times.
    pub fn passes(&self, node: &Node, stat: Option<&Stat>) -> bool {
        if self.takes_directories && node.is_directory() {
            return true;
        }
        let named = self.name.as_ref().is_none_or(|pattern| like(&node.name, pattern));
        let is_newer = |newer: i64| stat.is_some_and(|stat| stat.mtime_ns > newer.saturating_mul(SECOND));
        named && self.newer.is_none_or(is_newer)
    }
}

/// Whether a text is like a pattern: `%` stands for any bytes, `_` for one, and behind `\` a byte is itself.
fn like(text: &[u8], pattern: &[u8]) -> bool {
    let (mut at, mut by) = (0, 0);
    // Where to go on when what follows the last `%` doesn't match: that takes one byte more then.
    let mut again = None;
    while at < text.len() {
        let (byte, width) = match pattern.get(by..) {
            Some([b'%', ..]) => {
                again = Some((at, by + 1));
                by += 1;
                continue;
            }
            Some([b'\\', literal, ..]) => (Some(*literal), 2),
            Some([b'_', ..]) => (Some(text[at]), 1),
            Some([literal, ..]) => (Some(*literal), 1),
            _ => (None, 0),
        };
        if byte == Some(text[at]) {
            (at, by) = (at + 1, by + width);
        } else if let Some((from, behind)) = again {
            (at, by) = (from + 1, behind);
            again = Some((at, behind));
        } else {
            return false;
        }
    }
    pattern[by.min(pattern.len())..].iter().all(|byte| *byte == b'%')
}

/// Makes a filter.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_pipeline_create(
    dfs: *mut c_void,
    pred: dfs_predicate_t,
    flags: u64,
    dpipe: *mut *mut c_void,
) -> c_int {
    checked(|| {
        let (_, place) = (mounted(dfs)?, required(dpipe)?);
        if flags & !(NAME | NEWER | INCLUDE_DIRECTORIES) != 0 || flags & (NAME | NEWER) == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let pattern = pred.dp_name.iter().map(|byte| byte.to_ne_bytes()[0]);
        let filter = Filter {
            name: (flags & NAME != 0).then(|| pattern.take_while(|byte| *byte != 0).collect()),
            newer: (flags & NEWER != 0).then_some(pred.dp_newer),
            takes_directories: flags & INCLUDE_DIRECTORIES != 0,
        };
        place.set(pointer(handle::issue(Opened::Filter(Arc::new(filter)))?));
        Ok(())
    })
}

/// Ends the use of a filter.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_pipeline_destroy(dpipe: *mut c_void) -> c_int {
    checked(|| {
        handle::filter(handle_of(dpipe))?;
        Ok(handle::forget(handle_of(dpipe))?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_stand_for_whole_names() {
        for (text, pattern) in
            [("file.6", "%.6%"), ("abc", "a_c"), ("abc", "%"), ("a%", "a\\%"), ("", "%"), ("aXbXc", "%X%c")]
        {
            assert!(like(text.as_bytes(), pattern.as_bytes()), "{text} {pattern}");
        }
        for (text, pattern) in [("file.7", "%.6%"), ("abc", "a_"), ("ab", "a\\%"), ("abc", "b%"), ("a", "")] {
            assert!(!like(text.as_bytes(), pattern.as_bytes()), "{text} {pattern}");
        }
    }
}
