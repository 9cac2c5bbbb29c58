//! Target: a superblock, with its checksum unchanged and with its checksum corrected.
//!
//! Input: the page from its first byte, without the zeros at its end.
//!
//! Properties: if a decoded superblock is encoded again, the result decodes to an equal superblock. A wrong checksum is
//! never accepted. Every error reports corruption.

use pandodb::base::{BlockAddr, Error, PageNo, Seqno, StoreId};
use pandodb::space::{MirroredBlock, Superblock};

use super::trimmed;
use crate::repair::{self, PAGE};
use crate::{Target, assert_corruption, mutate};

/// The target.
pub const TARGET: Target =
    Target { name: "superblock", max_len: PAGE, memory: 64 << 10, run, mutate: mutate::plain, seeds };

fn run(data: &[u8]) {
    let mut page = [0; PAGE];
    page[..data.len()].copy_from_slice(data);
    look(&page);
    let as_it_was = page;
    repair::superblock(&mut page);
    if page != as_it_was {
        assert!(Superblock::decode(&as_it_was).is_err(), "a wrong checksum was accepted");
    }
    look(&page);
}

fn look(page: &[u8]) {
    match Superblock::decode(page) {
        // A superblock with an unknown version number and a right checksum was written by another version of PandoDB.
        Err(Error::Unsupported { detail }) => assert!(detail.starts_with("format version"), "{detail}"),
        Err(error) => assert_corruption(&error),
        Ok(superblock) => {
            let again = superblock.encode();
            assert_eq!(Superblock::decode(&again).expect("what was encoded"), superblock);
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let young = Superblock {
        compatible: 0,
        read_only_compatible: 0,
        incompatible: 0,
        store_id: StoreId([7; 16]),
        generation: 2,
        epoch: 0,
        clean: true,
        durable: Seqno(0),
        next_run_id: 1,
        catalog: MirroredBlock([BlockAddr { page: PageNo(1), pages: 1 }, BlockAddr { page: PageNo(64), pages: 1 }]),
        catalog_len: 5,
        catalog_generation: 1,
        checkpointed_at: 0,
    };
    let old = Superblock { generation: 999, epoch: 30, clean: false, durable: Seqno(1 << 40), ..young.clone() };
    [young, old].iter().map(|superblock| trimmed(superblock.encode()[..PAGE - 4].to_vec())).collect()
}
