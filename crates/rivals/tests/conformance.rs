//! Checks that every engine that is compiled in fulfils the contract of the lab's trait, and gives exactly the
//! guarantees of its promise.
//!
//! `an_engine_conforms` is one function for all engines. To test a new engine, add its name below.

use std::env;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use pandodb_lab::engine::{Engine, Mode, Need, Result, Session, Setup, Write};
use pandodb_lab::transactions::{Access, Attempts, Transaction, Verdict};
use pandodb_rivals::{Promise, Rival, rival};

macro_rules! engines {
    ($($test:ident: $name:literal, $feature:literal;)*) => { $(
        #[cfg(feature = $feature)]
        mod $test {
            #[test]
            fn conforms() -> pandodb_lab::engine::Result<()> {
                super::an_engine_conforms($name)
            }

            #[test]
            fn a_kill_loses_exactly_what_the_promise_allows() -> pandodb_lab::engine::Result<()> {
                super::a_kill_loses_what_the_promise_says($name)
            }

            #[test]
            fn holds_more_than_its_budget() -> pandodb_lab::engine::Result<()> {
                super::more_than_the_budget($name)
            }
        }
    )* };
}

engines! {
    rocksdb: "rocksdb", "rocksdb";
    rocksdb_universal: "rocksdb-universal", "rocksdb";
    rocksdb_blob: "rocksdb-blob", "rocksdb";
    rocksdb_optimistic: "rocksdb-optimistic", "rocksdb";
    rocksdb_pessimistic: "rocksdb-pessimistic", "rocksdb";
    lmdb: "lmdb", "lmdb";
    lmdb_writemap: "lmdb-writemap", "lmdb";
    leveldb: "leveldb", "leveldb";
    wiredtiger: "wiredtiger", "wiredtiger";
    redb: "redb", "redb";
    fjall: "fjall", "fjall";
    fjall_blob: "fjall-blob", "fjall";
    fjall_optimistic: "fjall-optimistic", "fjall";
    fjall_single_writer: "fjall-single-writer", "fjall";
    bf_tree: "bf-tree", "bf-tree";
    btreemap: "btreemap", "btreemap";
}

fn setup() -> Setup {
    Setup { memory_budget: 32 << 20, mode: Mode::Product, deterministic: false }
}

fn get(session: &mut dyn Session, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut value = b"what was here before".to_vec();
    Ok(session.get(key, &mut value)?.then_some(value))
}

fn counter(session: &mut dyn Session, key: &[u8]) -> Result<u64> {
    let value = get(session, key)?.ok_or("no counter")?;
    Ok(u64::from_le_bytes(value.as_slice().try_into()?))
}

fn entries(session: &mut dyn Session, from: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut all = Vec::new();
    let count = session.scan(from, limit, &mut |key, value| all.push((key.to_vec(), value.to_vec())))?;
    assert_eq!(count, all.len(), "a scan counts what it visits");
    Ok(all)
}

fn keys(session: &mut dyn Session, from: &[u8], limit: usize) -> Result<Vec<String>> {
    let all = entries(session, from, limit)?;
    Ok(all.into_iter().map(|(key, _)| String::from_utf8_lossy(&key).into_owned()).collect())
}

fn an_engine_conforms(name: &str) -> Result<()> {
    let Rival { opener, promise } = rival(name).ok_or("not compiled in")?;
    assert_eq!(opener.name(), name);
    let directory = tempfile::tempdir()?;
    let engine = opener.open(directory.path(), &setup())?;
    let configuration = engine.configuration();
    assert!(
        configuration.iter().any(|(k, v)| k == "engine" && v.chars().any(|c| c.is_ascii_digit()) || name == "btreemap")
    );
    assert!(configuration.iter().any(|(k, _)| k == "durability"));

    point_operations(engine.as_ref())?;
    scans(engine.as_ref())?;
    reverse_scans(engine.as_ref())?;
    batches(engine.as_ref(), promise)?;
    merges(engine.as_ref())?;
    ranges(engine.as_ref())?;
    sizes(engine.as_ref(), promise)?;
    two_threads(engine.as_ref())?;
    transactions(engine.as_ref())?;
    concurrent_transactions(engine.as_ref())?;
    sorted_loads(engine.as_ref())?;

    engine.settle()?;
    assert!(engine.debt().is_none_or(|bytes| bytes < 64 << 20));
    let figures = engine.figures()?;
    assert!(figures.gauges.values().all(|v| v.is_finite()));
    engine.close()?;

    let engine = opener.open(directory.path(), &setup())?;
    reopened(engine.as_ref(), promise)?;
    engine.close()?;
    // This closes and reopens the store once more, to check that closing a reopened store loses no data.
    let engine = opener.open(directory.path(), &setup())?;
    reopened(engine.as_ref(), promise)?;
    engine.close()
}

/// The keys and values of a range in a transaction.
fn seen(tx: &mut dyn Transaction, limit: usize) -> Result<Vec<(String, String)>> {
    let (mut all, text) = (Vec::new(), |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned());
    let count = tx.scan(b"tx-", b"tx-e", limit, &mut |key, value| all.push((text(key), text(value))))?;
    assert_eq!(count, all.len(), "a scan counts what it visits");
    Ok(all)
}

fn transactions(engine: &dyn Engine) -> Result<()> {
    let mut s = engine.session()?;
    assert_eq!(engine.lacks(Need::Transactions).is_some(), engine.transactions().is_none());
    if engine.transactions().is_none() {
        assert!(s.transact(Access::Write, &mut |_| Ok(Verdict::Commit)).is_err(), "what an engine lacks it refuses");
        return Ok(());
    }
    let mut value = Vec::new();
    s.put(b"tx-a", b"one")?;
    s.put(b"tx-b", b"two")?;
    s.put(b"tx-e", b"outside")?;
    for (verdict, committed) in [(Verdict::RollBack, false), (Verdict::Commit, true)] {
        let attempts = s.transact(Access::Write, &mut |tx| {
            assert!(tx.get(b"tx-a", &mut value)? && value == b"one");
            assert!(tx.get_for_update(b"tx-b", &mut value)? && value == b"two");
            assert!(!tx.get(b"tx-c", &mut value)? && value.is_empty());
            tx.put(b"tx-c", b"three")?;
            assert!(tx.get(b"tx-c", &mut value)? && value == b"three", "a transaction sees its own writes");
            tx.delete(b"tx-a")?;
            assert!(!tx.get_constant(b"tx-a", &mut value)?);
            tx.add(b"tx-sum", 5)?;
            tx.add(b"tx-sum", 6)?;
            let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
            assert_eq!(seen(tx, 10)?, [pair("tx-b", "two"), pair("tx-c", "three")]);
            assert_eq!(seen(tx, 1)?, [pair("tx-b", "two")]);
            Ok(verdict)
        })?;
        assert_eq!(attempts, Attempts { count: 1, gave_up: 0, committed });
        assert_eq!(get(s.as_mut(), b"tx-a")?.is_none(), committed);
        assert_eq!(get(s.as_mut(), b"tx-c")?.is_some(), committed);
    }
    assert_eq!(counter(s.as_mut(), b"tx-sum")?, 11);
    let read = s.transact(Access::Read, &mut |tx| {
        assert!(tx.get(b"tx-b", &mut value)? && value == b"two");
        assert_eq!(seen(tx, 10)?.len(), 2);
        Ok(Verdict::Commit)
    })?;
    assert!(read.committed);
    let failed = s.transact(Access::Write, &mut |tx| {
        tx.put(b"tx-b", b"lost")?;
        Err("the test fails".into())
    });
    assert_eq!(failed.unwrap_err().to_string(), "the test fails");
    assert_eq!(get(s.as_mut(), b"tx-b")?.as_deref(), Some(b"two".as_slice()));
    Ok(())
}

/// Increments by reads and writes, by additions, and by `fetch_update`, of one key by several threads.
fn concurrent_transactions(engine: &dyn Engine) -> Result<()> {
    const THREADS: u64 = 4;
    const EACH: u64 = 100;
    if engine.transactions().is_none() {
        return Ok(());
    }
    engine.session()?.put(b"tx-many", &0u64.to_le_bytes())?;
    let increment = |value: &mut Vec<u8>| {
        let n = u64::from_le_bytes(value.as_slice().try_into().expect("a counter"));
        *value = (n + 1).to_le_bytes().to_vec();
    };
    thread::scope(|scope| {
        let run = || -> Result<()> {
            let (mut s, mut value) = (engine.session()?, Vec::new());
            for _ in 0..EACH {
                let attempts = s.transact(Access::Write, &mut |tx| {
                    tx.get_for_update(b"tx-many", &mut value)?;
                    increment(&mut value);
                    tx.put(b"tx-many", &value)?;
                    Ok(Verdict::Commit)
                })?;
                assert!(attempts.committed && attempts.count > 0);
                s.transact(Access::Write, &mut |tx| tx.add(b"tx-many", 1).map(|()| Verdict::Commit))?;
                assert!(s.fetch_update(b"tx-many", &mut |value| increment(value))?.committed);
            }
            Ok(())
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(run)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    assert_eq!(counter(engine.session()?.as_mut(), b"tx-many")?, 3 * THREADS * EACH);
    Ok(())
}

fn point_operations(engine: &dyn Engine) -> Result<()> {
    let mut s = engine.session()?;
    assert_eq!(get(s.as_mut(), b"point-a")?, None);
    s.put(b"point-a", b"one")?;
    assert_eq!(get(s.as_mut(), b"point-a")?.as_deref(), Some(b"one".as_slice()));
    s.put(b"point-a", b"a longer one")?;
    assert_eq!(get(s.as_mut(), b"point-a")?.as_deref(), Some(b"a longer one".as_slice()));
    s.put(b"point-b", b"two")?;
    s.delete(b"point-a")?;
    assert_eq!(get(s.as_mut(), b"point-a")?, None);
    s.delete(b"point-a")?;
    s.delete(b"point-never")?;
    s.put(b"point-c", b"three")?;
    let asked = [b"point-c", b"point-a", b"point-b"].map(|k| k.to_vec());
    let mut found = Vec::new();
    assert_eq!(s.multi_get(&asked, &mut |i, value| found.push((i, value.to_vec())))?, 2);
    found.sort();
    assert_eq!(found, [(0, b"three".to_vec()), (2, b"two".to_vec())]);
    assert_eq!(s.multi_get(&[], &mut |_, _| panic!("nothing was asked"))?, 0);
    Ok(())
}

fn scans(engine: &dyn Engine) -> Result<()> {
    let mut s = engine.session()?;
    for i in [5_u32, 1, 9, 3, 7] {
        s.put(format!("scan-{i}").as_bytes(), format!("{i}").repeat(i as usize).as_bytes())?;
    }
    assert_eq!(keys(s.as_mut(), b"scan-", 3)?, ["scan-1", "scan-3", "scan-5"]);
    assert_eq!(keys(s.as_mut(), b"scan-3", 2)?, ["scan-3", "scan-5"]);
    assert_eq!(keys(s.as_mut(), b"scan-4", 2)?, ["scan-5", "scan-7"]);
    assert_eq!(keys(s.as_mut(), b"scan-9", 100)?, ["scan-9"]);
    assert_eq!(keys(s.as_mut(), b"scan-9z", 100)?, [""; 0]);
    assert_eq!(keys(s.as_mut(), b"scan-", 0)?, [""; 0]);
    assert_eq!(keys(s.as_mut(), b"", 1)?, ["point-b"]);
    assert_eq!(entries(s.as_mut(), b"scan-3", 1)?, [(b"scan-3".to_vec(), b"333".to_vec())]);
    s.delete(b"scan-5")?;
    assert_eq!(keys(s.as_mut(), b"scan-4", 2)?, ["scan-7", "scan-9"]);
    // Keys must be ordered by unsigned bytes.
    for key in [&b"scan-\x80"[..], b"scan-\x7f", b"scan-\xff\xff"] {
        s.put(key, b"high")?;
    }
    let high: Vec<_> = entries(s.as_mut(), b"scan-9a", 10)?.into_iter().map(|(key, _)| key).collect();
    assert_eq!(high, [&b"scan-\x7f"[..], b"scan-\x80", b"scan-\xff\xff"]);
    Ok(())
}

/// Runs after `scans`, with the keys that it put.
fn reverse_scans(engine: &dyn Engine) -> Result<()> {
    let mut s = engine.session()?;
    if engine.lacks(Need::ReverseScan).is_some() {
        assert!(s.scan_back(b"scan-9", 1, &mut |_, _| {}).is_err(), "what an engine lacks it refuses");
        return Ok(());
    }
    let mut back = |from: &[u8], limit: usize| -> Result<Vec<Vec<u8>>> {
        let mut keys = Vec::new();
        let count = s.scan_back(from, limit, &mut |key, value| {
            assert!(!value.is_empty());
            keys.push(key.to_vec());
        })?;
        assert_eq!(count, keys.len(), "a scan counts what it visits");
        Ok(keys)
    };
    assert_eq!(back(b"scan-9", 3)?, [&b"scan-9"[..], b"scan-7", b"scan-3"]);
    assert_eq!(back(b"scan-8", 2)?, [&b"scan-7"[..], b"scan-3"]);
    assert_eq!(back(b"scan-\xff\xff\xff", 2)?, [&b"scan-\xff\xff"[..], b"scan-\x80"]);
    assert_eq!(back(b"\xff", 1)?, [b"scan-\xff\xff"], "above the last key");
    assert_eq!(back(b"scan-1", 2)?, [&b"scan-1"[..], b"point-c"]);
    assert_eq!(back(b"a", 5)?, [b""; 0], "below the first key");
    assert_eq!(back(b"scan-9", 0)?, [b""; 0]);
    Ok(())
}

fn batches(engine: &dyn Engine, promise: Promise) -> Result<()> {
    let mut s = engine.session()?;
    s.put(b"batch-a", b"old")?;
    s.put(b"batch-b", b"old")?;
    let writes = [
        Write::Put(b"batch-a", b"new"),
        Write::Delete(b"batch-b"),
        Write::Put(b"batch-c", b"new"),
        Write::Delete(b"no"),
    ];
    if engine.lacks(Need::Batch).is_some() {
        assert!(s.write_batch(&writes).is_err(), "what an engine lacks it refuses");
        return Ok(());
    }
    s.write_batch(&writes)?;
    s.write_batch(&[])?;
    assert_eq!(get(s.as_mut(), b"batch-a")?.as_deref(), Some(b"new".as_slice()));
    assert_eq!(get(s.as_mut(), b"batch-b")?, None);
    assert_eq!(get(s.as_mut(), b"batch-c")?.as_deref(), Some(b"new".as_slice()));
    // Two batches of two threads write the same keys. At each time, both keys have the value of the same batch.
    if promise.longest_value >= 4096 {
        thread::scope(|scope| -> Result<()> {
            let writers: Vec<_> = [b'x', b'y'].map(|byte| scope.spawn(move || write_pairs(engine, byte))).into();
            writers.into_iter().try_for_each(|writer| writer.join().expect("a writer panicked"))
        })?;
        let both = [get(s.as_mut(), b"batch-one")?, get(s.as_mut(), b"batch-two")?];
        assert!(both[0].is_some() && both[0] == both[1], "batches are not torn");
    }
    Ok(())
}

fn write_pairs(engine: &dyn Engine, byte: u8) -> Result<()> {
    let mut s = engine.session()?;
    for i in 0..100 {
        let value = [byte, i];
        // The order of the keys differs, so that locks of single keys in the given order would block both writers.
        let (first, second) = (Write::Put(b"batch-one", &value), Write::Put(b"batch-two", &value));
        s.write_batch(&if byte == b'x' { [first, second] } else { [second, first] })?;
    }
    Ok(())
}

/// Loads rows above all other keys of the store.
fn sorted_loads(engine: &dyn Engine) -> Result<()> {
    let mut s = engine.session()?;
    let mut next = 0;
    let mut rows = |key: &mut Vec<u8>, value: &mut Vec<u8>| {
        *key = format!("zz-{next:06}").into_bytes();
        *value = long(next, 100);
        next += 1;
        next <= LOADED
    };
    let loaded = s.load_sorted(&mut rows);
    if engine.lacks(Need::SortedLoad).is_some() {
        assert!(loaded.is_err(), "what an engine lacks it refuses");
        return Ok(());
    }
    assert_eq!(loaded? as usize, LOADED);
    assert_eq!(s.load_sorted(&mut |_, _| false)?, 0, "no rows");
    assert_eq!(entries(s.as_mut(), b"zz-", usize::MAX)?.len(), LOADED);
    loaded_rows(s.as_mut())?;
    s.put(b"zz-000005", b"changed")?;
    assert_eq!(get(s.as_mut(), b"zz-000005")?.as_deref(), Some(b"changed".as_slice()));
    s.put(b"zz-000005", &long(5, 100))
}

const LOADED: usize = 12_345;

fn loaded_rows(s: &mut dyn Session) -> Result<()> {
    for i in [0, 1, 5, 999, 1000, 10_000, LOADED - 1] {
        assert_eq!(get(s, format!("zz-{i:06}").as_bytes())?, Some(long(i, 100)), "row {i}");
    }
    Ok(())
}

fn merges(engine: &dyn Engine) -> Result<()> {
    let mut s = engine.session()?;
    assert_eq!(engine.lacks(Need::Merge), None);
    s.merge_add(b"merge-a", 5)?;
    s.merge_add(b"merge-a", 7)?;
    assert_eq!(counter(s.as_mut(), b"merge-a")?, 12);
    s.put(b"merge-b", &u64::MAX.to_le_bytes())?;
    s.merge_add(b"merge-b", 3)?;
    assert_eq!(counter(s.as_mut(), b"merge-b")?, 2);
    s.delete(b"merge-a")?;
    s.merge_add(b"merge-a", 1)?;
    assert_eq!(counter(s.as_mut(), b"merge-a")?, 1);
    assert_eq!(entries(s.as_mut(), b"merge-a", 1)?, [(b"merge-a".to_vec(), 1_u64.to_le_bytes().to_vec())]);
    Ok(())
}

fn ranges(engine: &dyn Engine) -> Result<()> {
    let mut s = engine.session()?;
    for i in 0..9 {
        s.put(format!("range-{i}").as_bytes(), b"there")?;
    }
    if engine.lacks(Need::RangeDelete).is_some() {
        assert!(s.delete_range(b"range-2", b"range-5").is_err(), "what an engine lacks it refuses");
        return Ok(());
    }
    s.delete_range(b"range-2", b"range-5")?;
    s.delete_range(b"range-5", b"range-5")?;
    s.delete_range(b"range-7", b"range-6")?;
    s.delete_range(b"range-80", b"range-9")?;
    s.delete_range(b"zz", b"zzz")?;
    let left = ["range-0", "range-1", "range-5", "range-6", "range-7", "range-8"];
    let seen = keys(s.as_mut(), b"range-", 100)?;
    assert_eq!(seen.into_iter().filter(|k| k.starts_with("range-")).collect::<Vec<_>>(), left);
    assert_eq!(get(s.as_mut(), b"range-2")?, None);
    assert_eq!(get(s.as_mut(), b"range-4")?, None);
    s.put(b"range-3", b"again")?;
    assert_eq!(get(s.as_mut(), b"range-3")?.as_deref(), Some(b"again".as_slice()));
    Ok(())
}

fn long(i: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + i * 7) as u8).collect()
}

fn sizes(engine: &dyn Engine, promise: Promise) -> Result<()> {
    let mut s = engine.session()?;
    let empty = s.put(b"size-empty", b"");
    assert_eq!(empty.is_ok(), promise.empty_values, "{empty:?}");
    assert_eq!(get(s.as_mut(), b"size-empty")?, promise.empty_values.then(Vec::new));
    for i in 0..20 {
        let key = format!("size-4k-{i}");
        let put = s.put(key.as_bytes(), &long(i, 4096));
        assert_eq!(put.is_ok(), promise.longest_value >= 4096, "{put:?}");
        if promise.longest_value >= 4096 {
            assert_eq!(get(s.as_mut(), key.as_bytes())?, Some(long(i, 4096)));
        }
    }
    let key = vec![b'k'; promise.longest_key.min(1000)];
    s.put(&key, b"long key")?;
    assert_eq!(get(s.as_mut(), &key)?.as_deref(), Some(b"long key".as_slice()));
    if promise.longest_key < 1000 {
        assert!(s.put(&vec![b'k'; promise.longest_key + 1], b"longer key").is_err());
    }
    let longest = long(1, promise.longest_value.min(100_000));
    s.put(b"size-long", &longest)?;
    assert_eq!(get(s.as_mut(), b"size-long")?, Some(longest));
    s.delete(b"size-long")?;
    Ok(())
}

const THREADS: u64 = 2;
const EACH: u64 = 500;

fn two_threads(engine: &dyn Engine) -> Result<()> {
    thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> = (0..THREADS).map(|t| scope.spawn(move || one_of_two(engine, t))).collect();
        workers.into_iter().try_for_each(|w| w.join().expect("a worker panicked"))
    })?;
    let mut s = engine.session()?;
    assert_eq!(counter(s.as_mut(), b"thread-shared")?, THREADS * EACH);
    assert_eq!(keys(s.as_mut(), b"thread-0-", usize::MAX)?.iter().filter(|k| k.starts_with("thread-0-")).count(), 500);
    Ok(())
}

fn one_of_two(engine: &dyn Engine, t: u64) -> Result<()> {
    let mut s = engine.session()?;
    for i in 0..EACH {
        let key = format!("thread-{t}-{i:05}");
        s.put(key.as_bytes(), key.as_bytes())?;
        s.merge_add(b"thread-shared", 1)?;
        assert_eq!(get(s.as_mut(), key.as_bytes())?, Some(key.into_bytes()));
    }
    Ok(())
}

fn reopened(engine: &dyn Engine, promise: Promise) -> Result<()> {
    let mut s = engine.session()?;
    let kept = |value: &[u8]| promise.survives_close.then(|| value.to_vec());
    assert_eq!(get(s.as_mut(), b"point-b")?, kept(b"two"));
    assert_eq!(get(s.as_mut(), b"point-a")?, None);
    assert_eq!(get(s.as_mut(), b"scan-9")?, kept(b"999999999"));
    assert_eq!(get(s.as_mut(), b"merge-b")?, kept(&2_u64.to_le_bytes()));
    assert_eq!(get(s.as_mut(), b"thread-shared")?, kept(&(THREADS * EACH).to_le_bytes()));
    if engine.lacks(Need::RangeDelete).is_none() {
        assert_eq!(get(s.as_mut(), b"range-2")?, None);
        assert_eq!(get(s.as_mut(), b"range-3")?, kept(b"again"));
    }
    if engine.lacks(Need::Batch).is_none() {
        assert_eq!(get(s.as_mut(), b"batch-b")?, None);
        assert_eq!(get(s.as_mut(), b"batch-c")?, kept(b"new"));
    }
    if engine.lacks(Need::SortedLoad).is_none() && promise.survives_close {
        loaded_rows(s.as_mut())?;
    }
    if promise.longest_value >= 4096 {
        assert_eq!(get(s.as_mut(), b"size-4k-7")?, kept(&long(7, 4096)));
    }
    for t in 0..THREADS {
        for i in 0..EACH {
            let key = format!("thread-{t}-{i:05}").into_bytes();
            assert_eq!(get(s.as_mut(), &key)?, kept(&key));
        }
    }
    Ok(())
}

/// Writes three times as much data as the budget, in random order. Then settles the store and reads the data back, so
/// that evicted, flushed and compacted data is read.
fn more_than_the_budget(name: &str) -> Result<()> {
    let Rival { opener, .. } = rival(name).ok_or("not compiled in")?;
    let setup = Setup { memory_budget: 16 << 20, ..setup() };
    let directory = tempfile::tempdir()?;
    let engine = opener.open(directory.path(), &setup)?;
    let count = 48_000_u64;
    let key = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes();
    {
        let mut s = engine.session()?;
        for i in 0..count {
            s.put(&key(i), &long(i as usize, 1000))?;
        }
        for i in (0..count).step_by(3) {
            s.put(&key(i), &long(i as usize + 1, 900))?;
        }
        for i in (0..count).step_by(5) {
            s.delete(&key(i))?;
        }
    }
    engine.settle()?;
    let expected = |i: u64| match i {
        i if i % 5 == 0 => None,
        i if i % 3 == 0 => Some(long(i as usize + 1, 900)),
        i => Some(long(i as usize, 1000)),
    };
    let mut s = engine.session()?;
    for i in 0..count {
        assert_eq!(get(s.as_mut(), &key(i))?, expected(i), "key {i}");
    }
    let mut before = Vec::new();
    let scanned = s.scan(b"", usize::MAX, &mut |key, _| {
        assert!(before.as_slice() < key, "a scan is in order");
        before = key.to_vec();
    })?;
    assert_eq!(scanned as u64, count - count.div_ceil(5));
    drop(s);
    engine.close()
}

/// The environment variables. If they are set, this program runs as the child of a kill test.
const CHILD: &str = "RIVALS_KILL_CHILD";
const CHILD_DIRECTORY: &str = "RIVALS_KILL_DIRECTORY";
const KILLED_AT: u64 = 8_000;

/// The value of the `i`th write of a thread. The value is long enough for memtables to be flushed and logs to be
/// switched before the kill.
fn killed_value(t: u64, i: u64) -> Vec<u8> {
    format!("{t} {i} ").repeat(100).into_bytes()
}

/// The child process of a kill test, which writes until it kills itself during concurrent writes. Without the
/// environment variables, this test does nothing.
#[test]
fn the_child_of_a_kill() -> Result<()> {
    let (Ok(name), Some(directory)) = (env::var(CHILD), env::var_os(CHILD_DIRECTORY)) else { return Ok(()) };
    let opener = rival(&name).ok_or("not compiled in")?.opener;
    let engine = opener.open(Path::new(&directory), &setup())?;
    thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> = (0..THREADS)
            .map(|t| {
                scope.spawn({
                    let e = engine.as_ref();
                    move || write_until_killed(e, t)
                })
            })
            .collect();
        workers.into_iter().try_for_each(|w| w.join().expect("a worker panicked"))
    })
}

fn write_until_killed(engine: &dyn Engine, t: u64) -> Result<()> {
    let mut s = engine.session()?;
    for i in 0.. {
        let key = format!("kill-{t}-{:05}", i % 3_000); // later rounds overwrite
        s.put(key.as_bytes(), &killed_value(t, i))?;
        s.merge_add(format!("kill-sum-{t}").as_bytes(), 1)?;
        // The child writes the line with one `write` to the pipe, and only after the acknowledgement. So every line
        // that the parent reads stands for an acknowledged write.
        std::io::stderr().write_all(format!("acked {t} {i}\n").as_bytes())?;
        if t == 0 && i == KILLED_AT {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
        }
    }
    Ok(())
}

fn a_kill_loses_what_the_promise_says(name: &str) -> Result<()> {
    let Rival { opener, promise } = rival(name).ok_or("not compiled in")?;
    let directory = tempfile::tempdir()?;
    let output = Command::new(env::current_exe()?)
        .args(["--exact", "the_child_of_a_kill", "--nocapture", "--test-threads=1"])
        .env(CHILD, name)
        .env(CHILD_DIRECTORY, directory.path())
        .stdout(Stdio::null())
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(9), "{text}");
    let mut acknowledged = [0_u64; THREADS as usize];
    for line in text.lines().filter_map(|l| l.strip_prefix("acked ")) {
        let (t, i) = line.split_once(' ').ok_or("a torn line")?;
        acknowledged[t.parse::<usize>()?] = i.parse::<u64>()? + 1;
    }
    assert_eq!(acknowledged[0], KILLED_AT + 1);
    assert!(acknowledged[1] > 0, "the other thread wrote, too");

    let engine = opener.open(directory.path(), &setup())?;
    let mut s = engine.session()?;
    let mut lost = 0;
    for (t, &count) in (0..).zip(&acknowledged) {
        // Each key must have the value of its newest acknowledged write, or of a later write that was not acknowledged
        // before the kill.
        for i in count.saturating_sub(3_000)..count {
            let found = get(s.as_mut(), format!("kill-{t}-{:05}", i % 3_000).as_bytes())?;
            let newer = i + 3_000 == count && found == Some(killed_value(t, count));
            lost += u64::from(!newer && found != Some(killed_value(t, i)));
        }
        let sum = counter(s.as_mut(), format!("kill-sum-{t}").as_bytes()).unwrap_or(0);
        lost += u64::from(sum != count && sum != count + 1);
    }
    println!("{name}: {acknowledged:?} acknowledged, {lost} lost");
    assert_eq!(lost == 0, promise.survives_kill, "{lost} of {acknowledged:?} lost");
    drop(s);
    engine.close()
}
