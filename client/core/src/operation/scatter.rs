//! Scattered memory: lists of slices read and written as one run of bytes.

/// Total bytes of a list of slices.
pub fn total(pieces: &[&[u8]]) -> usize {
    pieces.iter().map(|piece| piece.len()).sum()
}

/// Total bytes of a list of writable slices.
pub fn total_mut(pieces: &[&mut [u8]]) -> usize {
    pieces.iter().map(|piece| piece.len()).sum()
}

/// Appends all pieces to `out`.
pub fn gather(pieces: &[&[u8]], out: &mut Vec<u8>) {
    for piece in pieces {
        out.extend_from_slice(piece);
    }
}

/// The part `[from, from + len)` of the run, as slices.
pub fn part<'a>(pieces: &[&'a [u8]], mut from: usize, mut len: usize) -> Vec<&'a [u8]> {
    let mut found = Vec::new();
    for piece in pieces {
        if len == 0 {
            break;
        }
        if from >= piece.len() {
            from -= piece.len();
            continue;
        }
        let take = len.min(piece.len() - from);
        found.push(&piece[from..from + take]);
        len -= take;
        from = 0;
    }
    found
}

/// Copies `data` to the run from `offset` on; what does not fit is dropped.
pub fn scatter(pieces: &mut [&mut [u8]], mut offset: usize, mut data: &[u8]) {
    for piece in pieces {
        if data.is_empty() {
            return;
        }
        if offset >= piece.len() {
            offset -= piece.len();
            continue;
        }
        let take = data.len().min(piece.len() - offset);
        piece[offset..offset + take].copy_from_slice(&data[..take]);
        data = &data[take..];
        offset = 0;
    }
}

/// Writes zeros to `[from, from + len)` of the run.
pub fn zero(pieces: &mut [&mut [u8]], mut from: usize, mut len: usize) {
    for piece in pieces {
        if len == 0 {
            return;
        }
        if from >= piece.len() {
            from -= piece.len();
            continue;
        }
        let take = len.min(piece.len() - from);
        piece[from..from + take].fill(0);
        len -= take;
        from = 0;
    }
}

/// Hands out a list of writable slices part by part, from its start.
pub struct Dealer<'a> {
    rest: std::vec::IntoIter<&'a mut [u8]>,
    current: &'a mut [u8],
}

impl<'a> Dealer<'a> {
    pub fn new(pieces: Vec<&'a mut [u8]>) -> Self {
        Self { rest: pieces.into_iter(), current: &mut [] }
    }

    /// The next `len` bytes, or as many as are left.
    pub fn take(&mut self, mut len: usize) -> Vec<&'a mut [u8]> {
        let mut dealt = Vec::new();
        while len > 0 {
            if self.current.is_empty() {
                match self.rest.next() {
                    Some(next) => self.current = next,
                    None => break,
                }
                continue;
            }
            let take = len.min(self.current.len());
            let (head, tail) = core::mem::take(&mut self.current).split_at_mut(take);
            dealt.push(head);
            self.current = tail;
            len -= take;
        }
        dealt
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(bytes: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
        let mut rest = bytes;
        let mut pieces = Vec::new();
        for cut in cuts {
            let (head, tail) = rest.split_at((*cut).min(rest.len()));
            pieces.push(head.to_vec());
            rest = tail;
        }
        pieces.push(rest.to_vec());
        pieces
    }

    proptest! {
        #[test]
        fn a_list_of_slices_behaves_as_one_run(
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
            cuts in proptest::collection::vec(0_usize..16, 0..8),
            from in 0_usize..64, len in 0_usize..64, data in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let end = (from + len).min(bytes.len());
            let mut pieces = cut(&bytes, &cuts);
            let slices: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(part(&slices, from, len).concat(), &bytes[from.min(end)..end]);
            let mut model = bytes.clone();
            for (index, byte) in data.iter().enumerate().filter(|(index, _)| from + index < bytes.len()) {
                model[from + index] = *byte;
            }
            let mut slices: Vec<&mut [u8]> = pieces.iter_mut().map(Vec::as_mut_slice).collect();
            scatter(&mut slices, from, &data);
            prop_assert_eq!(pieces.concat(), model.clone());
            let mut slices: Vec<&mut [u8]> = pieces.iter_mut().map(Vec::as_mut_slice).collect();
            zero(&mut slices, from, len);
            model[from.min(end)..end].fill(0);
            prop_assert_eq!(pieces.concat(), model.clone());
            let mut dealer = Dealer::new(pieces.iter_mut().map(Vec::as_mut_slice).collect());
            let first = dealer.take(from).concat();
            let second = dealer.take(len).concat();
            prop_assert_eq!([first, second].concat(), &model[..end.max(from.min(bytes.len()))]);
        }
    }
}
