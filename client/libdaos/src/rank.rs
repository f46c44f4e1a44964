//! Lists of ranks. They live in memory of the C library, as programs expect.

use core::ffi::{c_char, c_int};
use core::ptr;

use weir_proto::Der;

use crate::boundary::{element, guarded, text_of};

/// `d_rank_list_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct d_rank_list_t {
    rl_ranks: *mut u32,
    rl_nr: u32,
}

/// Ranks of a text, e.g. `1:3:5`, with one separator between each two.
fn parse(text: &str, separator: &str) -> Result<Vec<u32>, Der> {
    if separator.is_empty() {
        return Err(Der::INVAL);
    }
    text.split(separator).map(|rank| rank.parse().map_err(|_| Der::INVAL)).collect()
}

/// Makes a list with room for its ranks; NULL without memory.
fn allocate(count: u32) -> *mut d_rank_list_t {
    // SAFETY: `calloc` takes any sizes; zeros are valid for both.
    let (list, ranks) = unsafe {
        let list: *mut d_rank_list_t = libc::calloc(1, size_of::<d_rank_list_t>()).cast();
        let ranks: *mut u32 = libc::calloc(count.max(1) as usize, size_of::<u32>()).cast();
        (list, ranks)
    };
    if list.is_null() || ranks.is_null() {
        // SAFETY: NULL or just allocated.
        unsafe {
            libc::free(list.cast());
            libc::free(ranks.cast());
        }
        return ptr::null_mut();
    }
    // SAFETY: just allocated, of this type.
    unsafe { list.write(d_rank_list_t { rl_ranks: ranks, rl_nr: count }) };
    list
}

/// Makes a list of a text; NULL for a text that isn't ranks, and without memory.
#[unsafe(no_mangle)]
pub extern "C" fn daos_rank_list_parse(str: *const c_char, sep: *const c_char) -> *mut d_rank_list_t {
    let mut made = ptr::null_mut();
    let _result: c_int = guarded(|| {
        let ranks = parse(&text_of(str)?, &text_of(sep)?)?;
        let list = allocate(u32::try_from(ranks.len()).map_err(|_| Der::INVAL)?);
        if list.is_null() {
            return Err(Der::NOMEM);
        }
        // SAFETY: `allocate` made it.
        let first = unsafe { (*list).rl_ranks };
        for (index, rank) in ranks.into_iter().enumerate() {
            element(first, index).set(rank);
        }
        made = list;
        Ok(())
    });
    made
}

/// Frees a list and its ranks.
#[unsafe(no_mangle)]
pub extern "C" fn d_rank_list_free(list: *mut d_rank_list_t) {
    if list.is_null() {
        return;
    }
    // SAFETY: not NULL, so it is a list that this library made, or that the program allocated in the same way.
    unsafe {
        libc::free((*list).rl_ranks.cast());
        libc::free(list.cast());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ranks_between_single_separators_are_a_list() {
        assert_eq!(parse("1:3:5", ":"), Ok(vec![1, 3, 5]));
        assert_eq!(parse("7", ":"), Ok(vec![7]));
        for text in ["", "1::2", "1:", "a", "-1", "4294967296"] {
            assert_eq!(parse(text, ":"), Err(Der::INVAL), "{text}");
        }
        assert_eq!(parse("1", ""), Err(Der::INVAL));
    }
}
