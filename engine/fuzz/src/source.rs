//! Choices taken from the bytes of an input.

/// Numbers at which decoders go wrong: ends of ranges, and their neighbours.
const INTERESTING: [u64; 24] = [
    0,
    1,
    2,
    7,
    8,
    63,
    64,
    127,
    128,
    255,
    256,
    4095,
    4096,
    6000,
    16_384,
    32_512,
    65_535,
    1 << 20,
    u32::MAX as u64,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// The rest of an input. When it is used up, every choice is the first.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    rest: &'a [u8],
}

impl<'a> Source<'a> {
    /// Choices from these bytes.
    #[must_use]
    pub const fn new(input: &'a [u8]) -> Self {
        Self { rest: input }
    }

    /// Whether all bytes are used up.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    /// Whether the next choice is yes: `of` times out of 256.
    pub fn chance(&mut self, of: u8) -> bool {
        let byte = self.byte();
        // The first choice is "no", so that an input that is used up gives what is regular.
        byte > 0 && byte <= of
    }

    /// A number below `limit`, 0 for a limit of 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        if limit <= 256 {
            return u64::from(self.byte()) % limit.max(1);
        }
        self.raw(8) % limit
    }

    fn raw(&mut self, bytes: usize) -> u64 {
        (0..bytes).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }

    /// Any number: small, at the end of a range, or whatever.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            0..80 => self.below(16),
            80..160 => INTERESTING[usize::try_from(self.below(INTERESTING.len() as u64)).unwrap_or(0)],
            160..200 => self.raw(2),
            200..230 => self.raw(4),
            _ => self.raw(8),
        }
    }

    /// A number of 32 bits.
    pub fn number32(&mut self) -> u32 {
        (self.number() & 0xffff_ffff) as u32
    }

    /// Up to `most` bytes.
    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        let len = usize::try_from(self.below(most as u64 + 1)).unwrap_or(0);
        if self.chance(128) {
            // Long runs of one byte cost no input.
            return vec![self.byte(); len];
        }
        (0..len).map(|_| self.byte()).collect()
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap_or(0)]
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_that_is_used_up_gives_the_first_choice_forever() {
        let mut source = Source::new(&[3, 200]);
        assert_eq!(source.pick(&['a', 'b']), 'b');
        assert!(source.chance(255));
        assert!(source.is_empty());
        assert_eq!((source.number(), source.below(1000), source.chance(255)), (0, 0, false));
        assert_eq!(source.bytes(10), b"");
    }
}
