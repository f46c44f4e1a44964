//! A hint to the processor that memory is about to be read.

/// Bytes of a line of the processor's cache.
const LINE: usize = 64;

/// Has the processor bring these bytes close while it goes on with something else.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    #[cfg(target_arch = "x86_64")]
    for at in (0..bytes.len()).step_by(LINE) {
        // SAFETY: the address is that of a byte of the slice, and a hint has no effect that a program could see.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes[at..].as_ptr().cast()) };
    }
    // Elsewhere it goes without.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, LINE);
}
