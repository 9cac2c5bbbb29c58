//! The catalogue of keyspaces, below its checksum.
//!
//! Input: its bytes.
//!
//! What decodes is encoded to something that decodes equal; ids ascend below the next one; every error is corruption.

use pandodb::base::{KeyspaceId, Seqno};
use pandodb::index::RootRecord;
use pandodb::store::catalog::{Catalog, KeyspaceRecord};

use crate::{Target, assert_corruption, mutate};

/// The target.
pub const TARGET: Target =
    Target { name: "catalog", max_len: 4096, memory: 64 << 10, run, mutate: mutate::plain, seeds };

fn run(data: &[u8]) {
    match Catalog::decode(data) {
        Err(error) => assert_corruption(&error),
        Ok(catalog) => {
            let again = catalog.encode();
            assert!(again.len() <= data.len());
            assert_eq!(Catalog::decode(&again).expect("what was encoded"), catalog);
            assert!(catalog.keyspaces.windows(2).all(|pair| pair[0].id < pair[1].id));
            assert!(catalog.keyspaces.iter().all(|keyspace| keyspace.id.0 < catalog.next_id));
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let keyspace = |id, name: &str, operator: Option<(String, u32)>| KeyspaceRecord {
        id: KeyspaceId(id),
        name: name.into(),
        index: "stbe".into(),
        operator,
        blob_threshold: 2048,
        root: RootRecord { through: Seqno(300), bytes: vec![1, 9, 200, 1, 1, 77, 0] },
    };
    let empty = Catalog { next_id: 1, ..Catalog::default() };
    let some = Catalog {
        next_id: 200,
        user_bytes: 5 << 30,
        written_bytes: 9 << 40,
        keyspaces: vec![
            keyspace(1, "rows", None),
            keyspace(3, "sümmen", Some(("add_i64".into(), 1))),
            keyspace(150, "", None),
        ],
    };
    vec![empty.encode(), some.encode()]
}
