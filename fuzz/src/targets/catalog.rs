//! The catalogue of keyspaces, below its checksum, and the payload of a log record that creates a keyspace.
//!
//! Input: the bytes of either.
//!
//! What decodes is encoded to something that decodes equal; ids ascend below the next one; every error is corruption.

use pandodb::base::{KeyspaceId, Seqno};
use pandodb::index::RootRecord;
use pandodb::store::catalog::{Catalog, Identity, KeyspaceRecord};

use crate::{Target, assert_corruption, mutate};

/// The target.
pub const TARGET: Target =
    Target { name: "catalog", max_len: 4096, memory: 64 << 10, run, mutate: mutate::plain, seeds };

fn run(data: &[u8]) {
    match Catalog::decode(data) {
        Err(error) => assert_corruption(&error),
        Ok(catalog) => {
            let again = catalog.encode();
            // Version 1 has no cut.
            assert!(again.len() <= data.len() + usize::from(catalog.cut.is_none()));
            let cut = Some(catalog.cut.unwrap_or_default());
            let ids: Vec<_> = catalog.keyspaces.iter().map(|keyspace| keyspace.identity.id).collect();
            assert!(ids.windows(2).all(|pair| pair[0] < pair[1]) && ids.iter().all(|id| id.0 < catalog.next_id));
            assert_eq!(Catalog::decode(&again).expect("what was encoded"), Catalog { cut, ..catalog });
        }
    }
    match Identity::decode(data) {
        Err(error) => assert_corruption(&error),
        Ok(identity) => {
            let mut again = Vec::new();
            identity.encode(&mut again);
            assert!(again.len() <= data.len() && !identity.name.is_empty());
            assert_eq!(Identity::decode(&again).expect("what was encoded"), identity);
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let identity = |id, name: &str, operator: Option<(String, u32)>| Identity {
        id: KeyspaceId(id),
        name: name.into(),
        index: "stbe".into(),
        operator,
        blob_threshold: 2048,
    };
    let keyspace = |id, name: &str, operator: Option<(String, u32)>| KeyspaceRecord {
        identity: identity(id, name, operator),
        root: RootRecord { through: Seqno(300), bytes: vec![1, 9, 200, 1, 1, 77, 0] },
    };
    let empty = Catalog { next_id: 1, ..Catalog::default() };
    let some = Catalog {
        next_id: 200,
        user_bytes: 5 << 30,
        written_bytes: 9 << 40,
        cut: Some(Seqno(301)),
        keyspaces: vec![
            keyspace(1, "rows", None),
            keyspace(3, "sümmen", Some(("add_i64".into(), 1))),
            keyspace(150, "", None),
        ],
    };
    let mut created = Vec::new();
    identity(7, "created", Some(("append".into(), 1))).encode(&mut created);
    let mut first = empty.encode();
    // As version 1 had it: no cut.
    first[0] = 1;
    first.remove(4);
    vec![empty.encode(), some.encode(), first, created]
}
