//! The persisted bytes, pinned by golden values, and round trips of operations.

use proptest::prelude::*;

use super::super::format::{
    FileName, Head, Header, RecordKind, parse_name, put_record, record_is_intact, unfinished_name,
};
use super::super::ops::{Ops, put_op};
use super::super::tags::{Tag, Tags, tagged_bytes};
use super::{STORE, segment_name};
use crate::base::{Error, KeyspaceId, Kind, MAX_KEY, Seqno, StoreId};

const HEADER: Header =
    Header { stream: 2, number: 0x0102_0304, epoch: 7, start: Seqno(0x1122), after: Some(Seqno(0x3344)) };

#[test]
fn golden_header() {
    let block = HEADER.encode(STORE);
    let mut golden = b"PandoWAL\x03\0\0\0\x02\0\0\0the store of log\x04\x03\x02\x01\0\0\0\0\x07\0\0\0\0\0\0\0".to_vec();
    golden.extend_from_slice(b"\x22\x11\0\0\0\0\0\0\x44\x33\0\0\0\0\0\0");
    golden.resize(4092, 0);
    golden.extend_from_slice(&GOLDEN_HEADER_CRC.to_le_bytes());
    assert_eq!(block[..64], golden[..64]);
    assert_eq!(block[4092..], golden[4092..]);
    assert!(block == golden, "zeros in between");
    let name = FileName { stream: 2, number: 0x0102_0304, unfinished: false };
    assert_eq!(Header::decode(&block, STORE, name).unwrap(), HEADER);
    assert!(Header::decode(&block, StoreId([1; 16]), name).unwrap_err().is_corruption());
    assert!(Header::decode(&block, STORE, FileName { number: 3, ..name }).unwrap_err().is_corruption());
    for byte in 0..block.len() {
        let mut bad = block.clone();
        bad[byte] ^= 1 << (byte % 8);
        assert!(Header::decode(&bad, STORE, name).is_err(), "byte {byte}");
    }
}
/// This checksum was computed independently of this program, like the other golden checksums.
const GOLDEN_HEADER_CRC: u32 = 0xd6c2_1fb6;

#[test]
fn golden_record() {
    let mut out = Vec::new();
    let head = Head { length: 5, count: 3, first: Seqno(0x0a0b), durable: Seqno(0x090a), kind: RecordKind::Ops };
    put_record(&mut out, HEADER.seed(STORE), 8192, &head, b"hello");
    let mut golden = GOLDEN_RECORD_CRC.to_le_bytes().to_vec();
    golden.extend_from_slice(b"\x05\0\0\0\x03\0\0\0REC\x01\x0b\x0a\0\0\0\0\0\0\x0a\x09\0\0\0\0\0\0hello\0\0\0");
    assert_eq!(out, golden);
    assert_eq!(Head::decode(&out), Some(head));
    assert!(record_is_intact(HEADER.seed(STORE), 8192, &out));
    assert!(!record_is_intact(HEADER.seed(STORE), 8200, &out), "at another offset");
    for other in [Header { epoch: 8, ..HEADER }, Header { stream: 1, ..HEADER }, Header { number: 1, ..HEADER }] {
        assert!(!record_is_intact(other.seed(STORE), 8192, &out), "in another segment");
    }
    assert!(!record_is_intact(HEADER.seed(StoreId([0; 16])), 8192, &out), "of another store");
    for bit in 0..out.len() * 8 {
        let mut bad = out.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(!record_is_intact(HEADER.seed(STORE), 8192, &bad), "bit {bit}");
    }
}
const GOLDEN_RECORD_CRC: u32 = 0xf709_4ed9;

/// Segments of earlier versions can be read. The error for a later version states that version.
#[test]
fn golden_versions() {
    let name = FileName { stream: 2, number: 0x0102_0304, unfinished: false };
    let mut golden = HEADER.encode(STORE);
    for (version, crc) in GOLDEN_CRCS {
        golden[8] = version;
        golden[4092..].copy_from_slice(&crc.to_le_bytes());
        let decoded = Header::decode(&golden, STORE, name);
        match version {
            1..=3 => assert_eq!(decoded.unwrap(), HEADER),
            _ => assert!(matches!(decoded, Err(Error::Unsupported { .. }))),
        }
    }
}
const GOLDEN_CRCS: [(u8, u32); 4] = [(1, 0xccbd_a001), (2, 0x590b_fb15), (3, GOLDEN_HEADER_CRC), (4, 0x778b_3bcc)];

/// A record with generations has a kind of its own.
#[test]
fn golden_tagged() {
    let tag = |memtable, generation| Some(Tag { memtable: Seqno(memtable), generation });
    let tags = Tags { life: 7, tags: vec![tag(0x0a00, 300), None, tag(0, 0)] };
    let payload = tags.encode(Seqno(0x0a0b), b"hello");
    assert_eq!(payload, b"\x05\0\0\0hello\x07\xad\x02\x0b\x00\x01\x8b\x14");
    assert!(payload.len() <= tagged_bytes(5, 3));
    assert_eq!(Tags::split(&payload, Seqno(0x0a0b), 3).unwrap(), (&b"hello"[..], tags));
    assert!(Tags::split(&payload, Seqno(0x0a0b), 2).unwrap_err().is_corruption(), "more operations than tags");
    for len in 0..payload.len() {
        assert!(Tags::split(&payload[..len], Seqno(0x0a0b), 3).unwrap_err().is_corruption(), "cut to {len}");
    }
    let mut out = Vec::new();
    let head = Head {
        length: payload.len() as u32,
        count: 3,
        first: Seqno(0x0a0b),
        durable: Seqno(9),
        kind: RecordKind::Tagged,
    };
    put_record(&mut out, 1, 4096, &head, &payload);
    assert_eq!((&out[12..16], Head::decode(&out)), (&b"REC\x02"[..], Some(head)));
}

/// A created keyspace and a sorted load have record kinds of their own.
#[test]
fn golden_created_and_loaded() {
    let mut out = Vec::new();
    for (kind, magic) in [(RecordKind::Created, &b"REC\x03"[..]), (RecordKind::Loaded, &b"REC\x04"[..])] {
        out.clear();
        let head = Head { length: 2, count: 1, first: Seqno(0x0a0b), durable: Seqno(9), kind };
        put_record(&mut out, 1, 4096, &head, b"ks");
        assert_eq!((&out[12..16], Head::decode(&out)), (magic, Some(head)));
    }
    out[15] = 5;
    assert_eq!(Head::decode(&out), None, "an unknown kind is not a record");
}

#[test]
fn a_head_out_of_bounds_is_none() {
    let head = Head { length: 0, count: 1, first: Seqno(9), durable: Seqno(8), kind: RecordKind::Ops };
    let mut good = Vec::new();
    put_record(&mut good, 1, 4096, &head, b"");
    assert_eq!(Head::decode(&good), Some(head));
    for (at, bytes) in [
        (4, &[0xff; 4][..]),             // longer than any payload
        (8, &[0; 4][..]),                // no seqnos
        (12, b"rec"),                    // magic
        (15, &[5][..]),                  // kind
        (16, &[8, 0, 0, 0, 0, 0, 0, 0]), // durable before it was written
        (16, &[0xff; 8][..]),            // seqnos that overflow
    ] {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(Head::decode(&bad), None, "{at} {bytes:?}");
    }
    assert_eq!(Head::decode(&good[..31]), None);
}

#[test]
fn file_names_round_trip() {
    assert_eq!(segment_name(0, 7), "wal-0000-000000000007");
    assert_eq!(unfinished_name(12, 345), "wal-0012-000000000345.new");
    assert_eq!(parse_name("wal-0012-000000000345.new"), Some(FileName { stream: 12, number: 345, unfinished: true }));
    for bad in ["wal-", "wal-0000", "wal-000-000000000007", "wal-0000-00000000000x", "wal-+001-000000000007", "data"] {
        assert_eq!(parse_name(bad), None, "{bad}");
    }
}

#[test]
fn golden_operations() {
    let mut out = Vec::new();
    put_op(&mut out, KeyspaceId(1), Kind::Put, b"k", b"value");
    put_op(&mut out, KeyspaceId(300), Kind::Delete, b"key", b"");
    put_op(&mut out, KeyspaceId(2), Kind::RangeDelete, b"", b"z");
    assert_eq!(out, b"\x01\x01\x01k\x05value\xac\x02\x00\x03key\x02\x04\x00\x01z");
}

#[test]
fn operations_out_of_bounds_are_corruption() {
    let bad: [&[u8]; 8] = [
        b"\x01",
        b"\x01\x09\x01k",
        b"\x01\x00\x00",
        b"\x01\x01\x01k",
        b"\x01\x01\x01k\x05val",
        b"\xff\xff\xff\xff\xff\x01\x00\x01k",
        b"\x01\x00\xff\xff\xff\xff\x0f",
        b"\x01\x03\x01k\x19aaaaaaaaaaaaaaaaaaaaaaaaa",
    ];
    for payload in bad {
        let mut ops = Ops::new(payload);
        assert!(ops.next().unwrap().unwrap_err().is_corruption(), "{payload:?}");
        assert!(ops.next().is_none());
    }
    let bound = vec![7; MAX_KEY + 1];
    let mut out = Vec::new();
    put_op(&mut out, KeyspaceId(0), Kind::RangeDelete, &bound, &bound);
    assert_eq!(Ops::new(&out).next().unwrap().unwrap().value.len(), MAX_KEY + 1);
    out[1] = Kind::Put as u8;
    assert!(Ops::new(&out).next().unwrap().is_err(), "too long for a key");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn operations_round_trip(ops in prop::collection::vec(
        (any::<u32>(), 0u8..5, prop::collection::vec(any::<u8>(), 1..20), prop::collection::vec(any::<u8>(), 0..20)), 0..20)
    ) {
        let mut out = Vec::new();
        for (keyspace, kind, key, value) in &ops {
            put_op(&mut out, KeyspaceId(*keyspace), Kind::from_u8(*kind).unwrap(), key, value);
        }
        let read: Vec<_> = Ops::new(&out).map(|op| op.unwrap()).collect();
        prop_assert_eq!(read.len(), ops.len());
        for (op, (keyspace, kind, key, value)) in read.iter().zip(&ops) {
            prop_assert_eq!((op.keyspace.0, op.kind as u8, op.key), (*keyspace, *kind, &key[..]));
            prop_assert_eq!(op.value, if op.kind == Kind::Delete { &[][..] } else { &value[..] });
        }
    }

    #[test]
    fn decoding_of_arbitrary_bytes_ends(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Ops::new(&payload).count() <= payload.len());
    }
}
