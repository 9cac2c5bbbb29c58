//! Mutations that work on inputs of any bytes. Targets with structured inputs have additional mutations of their own.
//!
//! The coverage-guided driver alternates between these mutations and its own. Its own mutations use values with which
//! the program compared parts of the input. The driver of `cargo test` uses only the mutations of this module and of
//! the targets.

use crate::Target;
use pandodb::base::random::Rng;

/// Boundary values with which code often compares.
const EDGES: [u64; 16] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x100,
    0xfff,
    0x1000,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 48,
    u64::MAX >> 1,
    (u64::MAX >> 1) + 1,
    u64::MAX,
];

/// Makes one to four changes to `input`, regardless of its structure.
pub fn plain(input: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..1 + rng.index(4) {
        one(input, rng);
    }
}

fn one(input: &mut Vec<u8>, rng: &mut Rng) {
    if input.is_empty() {
        input.extend((0..1 + rng.index(32)).map(|_| rng.next_u64() as u8));
        return;
    }
    let at = rng.index(input.len());
    let span = at..(at + 1 + rng.index(16)).min(input.len());
    match rng.index(12) {
        0 | 1 => input[at] ^= 1 << rng.index(8),
        2 => input[at] = rng.next_u64() as u8,
        3 => input[at] = input[at].wrapping_add(1 + 254 * rng.index(2) as u8),
        4 => overwrite(input, at, &EDGES[rng.index(EDGES.len())].to_le_bytes()[..1 << rng.index(4)]),
        5 => {
            let mut varint = Vec::new();
            pandodb::base::codec::put_varint(&mut varint, EDGES[rng.index(EDGES.len())]);
            input.splice(at..at + 1, varint);
        }
        6 => drop(input.drain(span)),
        7 => {
            let copy = input[span].to_vec();
            let to = rng.index(input.len() + 1);
            input.splice(to..to, copy);
        }
        8 => {
            let copy = input[span].to_vec();
            let to = rng.index(input.len());
            overwrite(input, to, &copy);
        }
        9 => {
            let new: Vec<u8> = (0..1 + rng.index(8)).map(|_| rng.next_u64() as u8).collect();
            input.splice(at..at, new);
        }
        10 => input[span].fill([0, 0xff, b'a'][rng.index(3)]),
        _ => input.truncate(at),
    }
}

fn overwrite(input: &mut [u8], at: usize, bytes: &[u8]) {
    let len = bytes.len().min(input.len() - at);
    input[at..at + len].copy_from_slice(&bytes[..len]);
}

/// Makes one mutation for the coverage-guided driver. Half of the time this is `native`, the driver's own mutation;
/// otherwise it is the mutation of the target.
pub fn for_driver(
    target: &Target,
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    native: impl FnOnce(&mut [u8], usize, usize) -> usize,
) -> usize {
    let mut rng = Rng(u64::from(seed));
    if rng.index(2) == 0 {
        return native(data, size, max_size);
    }
    let mut input = data[..size].to_vec();
    (target.mutate)(&mut input, &mut rng);
    input.truncate(max_size.min(data.len()));
    data[..input.len()].copy_from_slice(&input);
    input.len()
}
