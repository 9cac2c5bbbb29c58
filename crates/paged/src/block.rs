//! The bytes of one page in memory, aligned for direct I/O.
//!
//! `O_DIRECT` needs buffers at multiples of the device's block size. Safe code cannot ask the allocator for an
//! alignment of a `Vec<u8>`, so a block allocates [`ALIGN`] bytes more and starts at the first aligned address.

use std::ops::{Deref, DerefMut};

/// The alignment of a block in memory: the largest common size of a device's block.
pub const ALIGN: usize = 4096;

/// Aligned bytes. An empty block has no memory.
#[derive(Debug, Default)]
pub struct Block {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Block {
    /// A block of `len` zero bytes.
    pub fn zeroed(len: usize) -> Block {
        // Small blocks are used by tests only, without direct I/O.
        let align = if len.is_multiple_of(ALIGN) { ALIGN } else { 8 };
        let memory = vec![0; len + align];
        let start = memory.as_ptr().align_offset(align);
        assert!(start <= align, "an aligned address within the extra bytes");
        Block { memory, start, len }
    }
}

impl Deref for Block {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for Block {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_zero() {
        for len in [0, 256, 4096, 16 << 10] {
            let block = Block::zeroed(len);
            assert_eq!(block.len(), len);
            assert!(block.iter().all(|&byte| byte == 0));
            assert!(len == 0 || !len.is_multiple_of(ALIGN) || (block.as_ptr() as usize).is_multiple_of(ALIGN));
        }
        assert!(Block::default().is_empty());
    }
}
