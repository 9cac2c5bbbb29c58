//! The targets, one per file. Each file describes the input of its target and the properties that must hold.

pub mod catalog;
pub mod codec;
pub mod compressed;
pub mod filter;
pub mod import;
pub mod inner;
pub mod leaf;
pub mod maplet;
pub mod meta;
pub mod ops;
pub mod page_map;
pub mod quotient;
pub mod run;
pub mod store;
pub mod superblock;
pub mod tombstones;
pub mod trunk;
pub mod wal;

use crate::Target;
use crate::repair::PAGE;

/// Every target.
pub static ALL: &[Target] = &[
    codec::TARGET,
    leaf::TARGET,
    compressed::TARGET,
    inner::TARGET,
    filter::TARGET,
    quotient::TARGET,
    maplet::TARGET,
    tombstones::TARGET,
    meta::TARGET,
    superblock::TARGET,
    catalog::TARGET,
    page_map::TARGET,
    trunk::TARGET,
    run::TARGET,
    wal::TARGET,
    import::TARGET,
    store::TARGET,
    ops::TARGET,
];

/// Pads `bytes` with zeros to a block of whole pages (at least one page). Inputs do not contain the zeros at the end of
/// a block.
fn as_block(bytes: &[u8]) -> Vec<u8> {
    let mut block = bytes.to_vec();
    block.resize(bytes.len().max(1).next_multiple_of(PAGE), 0);
    block
}

/// Removes the zeros at the end of a block.
fn trimmed(mut block: Vec<u8>) -> Vec<u8> {
    while block.last() == Some(&0) {
        block.pop();
    }
    block
}

/// Keys to look up around `key`: the key, a key immediately above it, a key immediately below it, and the first half of
/// the key.
fn around(key: &[u8]) -> Vec<Vec<u8>> {
    let mut below = key.to_vec();
    if let Some(last) = below.pop()
        && last > 0
    {
        below.extend([last - 1, 0xff]);
    }
    vec![key.to_vec(), [key, &[0]].concat(), below, key[..key.len() / 2].to_vec()]
}
