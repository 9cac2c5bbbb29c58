//! Target: the catalogue of keyspaces, without its checksum, and the payload of a log record that creates a keyspace.
//!
//! Input: the bytes of a catalogue or of a payload.
//!
//! Properties: if a decoded value is encoded again, the result decodes to an equal value. Ids ascend and are below
//! `next_id`. Every error reports corruption, or names the index or the option that this version does not support.

use pandodb::base::{Error, KeyspaceId, Seqno};
use pandodb::index::RootRecord;
use pandodb::store::catalog::{Catalog, Identity, KeyspaceRecord};

use crate::{Target, assert_corruption, mutate};

/// The target.
pub const TARGET: Target =
    Target { name: "catalog", max_len: 4096, memory: 64 << 10, run, mutate: mutate::plain, seeds };

fn run(data: &[u8]) {
    match Catalog::decode(data) {
        Err(error) => assert_refused(&error),
        Ok(catalog) => {
            let again = catalog.encode();
            assert!(again.len() <= data.len());
            let ids: Vec<_> = catalog.keyspaces.iter().map(|keyspace| keyspace.identity.id).collect();
            assert!(ids.windows(2).all(|pair| pair[0] < pair[1]) && ids.iter().all(|id| id.0 < catalog.next_id));
            assert_eq!(Catalog::decode(&again).expect("what was encoded"), catalog);
        }
    }
    match Identity::decode(data) {
        Err(error) => assert_refused(&error),
        Ok(identity) => {
            let mut again = Vec::new();
            identity.encode(&mut again);
            assert!(again.len() <= data.len() && !identity.name.is_empty());
            assert_eq!(Identity::decode(&again).expect("what was encoded"), identity);
        }
    }
}

/// Asserts that the error reports corruption or a feature of a later version.
fn assert_refused(error: &Error) {
    if !matches!(error, Error::UnknownIndex { .. } | Error::Unsupported { .. }) {
        assert_corruption(error);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let identity = |id, name: &str, index: &str, operator: Option<(String, u32)>| Identity {
        id: KeyspaceId(id),
        name: name.into(),
        index: index.parse().expect("options of an index"),
        operator,
        blob_threshold: 2048,
    };
    let keyspace = |id, name: &str, index: &str, operator: Option<(String, u32)>| KeyspaceRecord {
        identity: identity(id, name, index, operator),
        root: RootRecord { through: Seqno(300), bytes: vec![1, 9, 200, 1, 1, 77, 0] },
    };
    let empty = Catalog { next_id: 1, ..Catalog::default() };
    let some = Catalog {
        next_id: 200,
        user_bytes: 5 << 30,
        written_bytes: 9 << 40,
        cut: Seqno(301),
        keyspaces: vec![
            keyspace(1, "rows", "stbe", None),
            keyspace(3, "sümmen", "stbe:fanout=4,filters=bloom", Some(("add_i64".into(), 1))),
            keyspace(150, "", "stbe:mode=paper", None),
        ],
    };
    let mut created = Vec::new();
    identity(7, "created", "stbe:leaf_memtables=2", Some(("append".into(), 1))).encode(&mut created);
    vec![empty.encode(), some.encode(), created]
}
