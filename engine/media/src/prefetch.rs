//! Hints to the processor about memory that is read next.

/// Bytes of a line of the processor's cache.
const LINE: usize = 64;

/// Has the processor bring values to its nearest cache, all their lines at once, and waits for none of them: the memory
/// answers while something else is done. It is a hint; processors that don't know it do without.
#[inline]
pub fn prefetch<T>(values: &[T]) {
    let begin = values.as_ptr().cast::<u8>();
    (0..size_of_val(values)).step_by(LINE).for_each(|at| hint(begin.wrapping_add(at)));
}

#[inline]
#[cfg(target_arch = "x86_64")]
fn hint(line: *const u8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: the instruction reads nothing that a program could see and faults at no address. All processors of this
    // architecture have it.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
}

#[inline]
#[cfg(not(target_arch = "x86_64"))]
fn hint(_: *const u8) {}
