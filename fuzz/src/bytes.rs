//! [`Bytes`]: reads an input as a sequence of small values, which a target interprets as a program.

/// Reads small values from the front of an input. After the end of the input all values are zero, so every input is
/// valid.
#[derive(Clone, Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// Whether the whole input has been read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the next bytes, at most `len`.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(len.min(self.0.len()));
        self.0 = tail;
        head
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let got = self.take(N);
        out[..got.len()].copy_from_slice(got);
        out
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Reads two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Reads eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Reads a number below `bound`. The number is read from one byte if `bound` is at most 256, otherwise from two
    /// bytes. `bound` is at most 65,536.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!((1..=1 << 16).contains(&bound), "two bytes cannot choose among {bound}");
        if bound <= 256 { usize::from(self.u8()) % bound } else { usize::from(self.u16()) % bound }
    }

    /// Reads a number. Small numbers, numbers near powers of two, and numbers near the maximum are likely, because code
    /// often compares with such numbers.
    pub fn number(&mut self) -> u64 {
        let tag = self.u8();
        match tag {
            0..=191 => u64::from(tag),
            192..=223 => (1u64 << ((tag - 192) * 2 + 1)).wrapping_add(u64::from(self.u8())).wrapping_sub(2),
            224..=239 => u64::from(self.u16()),
            240..=247 => u64::MAX - u64::from(tag - 240),
            248..=251 => (u64::MAX >> 1) - u64::from(tag - 248) + 1,
            _ => self.u64(),
        }
    }

    /// Reads bytes that are preceded by their length (one byte).
    pub fn string(&mut self) -> &'a [u8] {
        let len = usize::from(self.u8());
        self.take(len)
    }
}
