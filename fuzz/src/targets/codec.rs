//! Target: varints, readers and key ranges. The target also tests two encodings that are built from the encodings
//! above: references to large values, and operations of a log record.
//!
//! Input: one byte that chooses the decoder, then the bytes to decode.
//!
//! Properties: if a decoded value is encoded again, the result decodes to an equal value. An encoded varint is not
//! longer than the bytes from which it was decoded. After every read, the position of a reader plus its remaining
//! length is the total length. Every error reports corruption.

use pandodb::KeyRange;
use pandodb::base::codec::{Reader, get_varint, put_bytes, put_varint, varint_len};
use pandodb::base::range::successor;
use pandodb::base::{BlobRef, KeyspaceId, Kind, MAX_KEY};
use pandodb::wal::{Op, Ops, put_op};

use crate::bytes::Bytes;
use crate::{Target, assert_corruption, mutate};

/// The target.
pub const TARGET: Target = Target { name: "codec", max_len: 4096, memory: 64 << 10, run, mutate: mutate::plain, seeds };

fn run(data: &[u8]) {
    let mut input = Bytes(data);
    match input.u8() % 5 {
        0 => varints(input.0),
        1 => reader(input),
        2 => blob(input.0),
        3 => operations(input.0),
        _ => ranges(input),
    }
}

fn varints(mut bytes: &[u8]) {
    while let Some((value, len)) = get_varint(bytes) {
        assert!((1..=10).contains(&len) && len <= bytes.len() && varint_len(value) <= len);
        let mut out = Vec::new();
        put_varint(&mut out, value);
        assert_eq!((out.len(), get_varint(&out)), (varint_len(value), Some((value, out.len()))));
        assert!(get_varint(&out[..out.len() - 1]).is_none(), "a truncated varint was decoded");
        bytes = &bytes[len..];
    }
    let longest = bytes.iter().take(10).take_while(|byte| **byte >= 0x80).count();
    assert!(longest == bytes.len() || longest >= 9, "a varint that ends within 64 bits was refused");
}

/// The input starts with a string in which each byte is one read operation. The rest of the input is the data to read.
fn reader(mut input: Bytes<'_>) {
    let script = input.string();
    let mut reader = Reader::new(input.0, "fuzz");
    for step in script {
        let before = reader.position();
        let left = reader.remaining();
        let asked = usize::from(step >> 3);
        let result = match step & 7 {
            0 => reader.u8().map(|_| ()),
            1 => reader.u16().map(|_| ()),
            2 => reader.u32().map(|_| ()),
            3 => reader.u64().map(|_| ()),
            4 => reader.varint_max(1 << asked).map(|value| assert!(value <= 1 << asked)),
            5 => reader.count(asked).map(|count| assert!(count * asked.max(1) <= left)),
            6 => reader.bytes().map(|bytes| assert!(bytes.len() < left)),
            _ => reader.take(asked).map(|bytes| assert_eq!(bytes.len(), asked)),
        };
        assert_eq!(reader.position() + reader.remaining(), input.0.len());
        assert!(reader.position() >= before);
        if let Err(error) = result {
            assert_corruption(&error);
        }
    }
}

fn blob(bytes: &[u8]) {
    match BlobRef::decode(bytes) {
        Err(error) => assert_corruption(&error),
        Ok(blob) => {
            let mut out = Vec::new();
            blob.encode(&mut out);
            assert_eq!(BlobRef::decode(&out).expect("what was encoded"), blob);
            assert!(out.len() <= bytes.len() && blob.addr().bytes() as u64 >= blob.len);
        }
    }
}

fn operations(payload: &[u8]) {
    let (mut ops, mut out): (Vec<Op<'_>>, Vec<u8>) = (Vec::new(), Vec::new());
    let mut read = Ops::new(payload);
    for op in &mut read {
        match op {
            Ok(op) => ops.push(op),
            Err(error) => assert_corruption(&error),
        }
    }
    assert!(read.next().is_none(), "an operation after the end or an error");
    ops.iter().for_each(|op| put_op(&mut out, op.keyspace, op.kind, op.key, op.value));
    let again: Vec<Op<'_>> = Ops::new(&out).map(|op| op.expect("what was encoded")).collect();
    assert!(again == ops && out.len() <= payload.len());
}

fn ranges(mut input: Bytes<'_>) {
    let a = KeyRange::new(input.string(), input.string());
    let b = KeyRange::new(input.string(), input.string());
    let both = a.intersect(&b);
    for key in [&a.from, &a.to, &b.from, &b.to].into_iter().flat_map(|key| [key.clone(), successor(key)]) {
        if key.is_empty() || key.len() > MAX_KEY {
            continue;
        }
        assert_eq!(both.contains(&key), a.contains(&key) && b.contains(&key));
        assert!(!a.contains(&key) || !a.is_empty());
        assert!(!both.contains(&key) || a.overlaps(&b));
        assert!(!a.covers(&b) || !b.contains(&key) || a.contains(&key));
        assert!(KeyRange::point(&key).contains(&key) && KeyRange::prefix(&key).contains(&key));
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut varints = vec![0];
    [0, 127, 128, 1 << 48, u64::MAX].into_iter().for_each(|value| put_varint(&mut varints, value));
    let mut read = vec![1, 4, 6, 4 | 6 << 3, 5 | 1 << 3, 7 | 2 << 3];
    put_bytes(&mut read, b"key");
    read.extend([40, 3, 1, 2, 3]);
    let mut blob = vec![2];
    BlobRef { page: pandodb::base::PageNo(77), len: 9000, crc: 5 }.encode(&mut blob);
    let mut ops = vec![3];
    put_op(&mut ops, KeyspaceId(1), Kind::Put, b"key", b"value");
    put_op(&mut ops, KeyspaceId(1), Kind::Delete, b"key", b"");
    put_op(&mut ops, KeyspaceId(300), Kind::Merge, b"k", &[1; 8]);
    put_op(&mut ops, KeyspaceId(2), Kind::BlobPut, b"large", &blob[1..]);
    put_op(&mut ops, KeyspaceId(1), Kind::RangeDelete, b"", b"m");
    let ranges = vec![4, 1, b'a', 2, b'b', 0, 0, 1, b'b'];
    vec![varints, read, blob, ops, ranges]
}
