//! What an input reached, from the counters that the compiler puts into the code (`-C passes=sancov-module`,
//! `make fuzz`). A plain build has none.
#![expect(unsafe_code, reason = "the compiler hands the counters over by a C function and as raw memory")]

use std::sync::Mutex;

/// Counters of each code unit: address and number of bytes.
static REGIONS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// Called by every instrumented code unit before `main`.
///
/// # Safety
/// `start` and `stop` must be the ends of a unit's counters, which live as long as the program.
// SAFETY: the name is the one that LLVM's instrumentation calls; nothing else defines it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    let (start, stop) = (start as usize, stop as usize);
    if let Ok(mut regions) = REGIONS.lock()
        && stop > start
        && !regions.contains(&(start, stop - start))
    {
        regions.push((start, stop - start));
    }
}

/// Counters that are looked at together.
const WORD: usize = size_of::<u64>();

/// What was reached so far.
#[derive(Debug)]
pub struct Coverage {
    regions: Vec<(usize, usize)>,
    /// For each counter, the magnitudes that were seen, one bit each.
    seen: Vec<u8>,
    reached: usize,
}

impl Default for Coverage {
    fn default() -> Self {
        Self::new()
    }
}

/// The magnitude of a counter: how often matters, but only roughly.
const fn magnitude(count: u8) -> u8 {
    match count {
        0 => 0,
        1 => 1,
        2 => 1 << 1,
        3 => 1 << 2,
        4..8 => 1 << 3,
        8..16 => 1 << 4,
        16..32 => 1 << 5,
        32..128 => 1 << 6,
        128.. => 1 << 7,
    }
}

impl Coverage {
    /// Nothing reached yet.
    #[must_use]
    pub fn new() -> Self {
        let regions = REGIONS.lock().map(|regions| regions.clone()).unwrap_or_default();
        let total = regions.iter().map(|(_, len)| len).sum();
        Self { regions, seen: vec![0; total], reached: 0 }
    }

    /// Whether the build has counters.
    #[must_use]
    pub fn is_available(&self) -> bool {
        !self.seen.is_empty()
    }

    /// Places reached so far.
    #[must_use]
    pub const fn reached(&self) -> usize {
        self.reached
    }

    /// All places.
    #[must_use]
    pub fn total(&self) -> usize {
        self.seen.len()
    }

    /// Sets all counters to zero, before a run.
    pub fn reset(&mut self) {
        for (start, len) in &self.regions {
            // SAFETY: as in `take`; nothing holds a reference to the counters.
            unsafe { core::ptr::write_bytes(*start as *mut u8, 0, *len) };
        }
    }

    /// Takes in the counters after a run. Returns whether something was reached that wasn't before.
    pub fn take(&mut self) -> bool {
        let (mut first, mut is_new) = (0, false);
        for (start, len) in &self.regions {
            let mut at = 0;
            while at < *len {
                let place = start + at;
                if at + WORD <= *len && place.is_multiple_of(WORD) {
                    // SAFETY: as below, and the word lies within the region and is aligned.
                    let word = unsafe { core::ptr::read_volatile(place as *const u64) };
                    // Of all places an input reaches few.
                    if word == 0 {
                        at += WORD;
                        continue;
                    }
                }
                // SAFETY: the unit that registered the region has `len` bytes there for the life of the program, and
                // `at` is below that. This code counts there itself meanwhile: hence a volatile read and no
                // reference. A count of the watching thread that is missed or doubled does no harm.
                let counter = unsafe { core::ptr::read_volatile(place as *const u8) };
                let (bit, seen) = (magnitude(counter), &mut self.seen[first + at]);
                if bit & !*seen != 0 {
                    self.reached += usize::from(*seen == 0);
                    *seen |= bit;
                    is_new = true;
                }
                at += 1;
            }
            first += len;
        }
        is_new
    }
}
