//! Runs all transactional workloads at a small size on PandoDB and on a map in memory, whose transactions are right or
//! have one of several faults. The check of the sums must find each fault.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pandodb::IndexKind;

use super::program::{Program, Settings, Tally};
use super::{Step, StepKind, open};
use crate::bench::{self, Plan};
use crate::engine::{Engine, Mode, Need, Opener, Result, Session, Setup, Write};
use crate::line::{Line, TransactionFigures};
use crate::pando::Pando;
use crate::transactions::{
    Access, Attempts, Capability, Conflict, Isolation, Scheme, Transaction, Verdict, Work, retry, sum,
};
use crate::workload::{self, Dist, TRANSACTIONS, Transactional};

/// What the transactions of the map do wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// There are no transactions.
    Absent,
    /// Other transactions run between the operations of a transaction.
    NoIsolation,
    /// A transaction that is rolled back keeps its writes.
    NoRollback,
    /// Every third attempt conflicts after all its operations, but keeps its writes.
    KeepsConflicts,
    /// Every third attempt conflicts after all its operations, and has no effect. This is not a fault.
    Conflicts,
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Debug)]
struct Map {
    rows: Mutex<Rows>,
    fault: Fault,
    attempts: AtomicU64,
}

#[derive(Debug)]
struct MapOpener(Fault);

impl Opener for MapOpener {
    fn name(&self) -> String {
        "map".to_owned()
    }

    fn survives_close(&self) -> bool {
        false
    }

    fn open(&self, _: &Path, _: &Setup) -> Result<Box<dyn Engine>> {
        Ok(Box::new(Map { rows: Mutex::default(), fault: self.0, attempts: AtomicU64::new(0) }))
    }
}

impl Engine for Map {
    fn configuration(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn lacks(&self, need: Need) -> Option<&'static str> {
        (need == Need::Transactions && self.fault == Fault::Absent).then_some("this map has no transactions")
    }

    fn transactions(&self) -> Option<Capability> {
        let (isolation, scheme) = (Isolation::Serializable, Scheme::SingleWriter);
        (self.fault != Fault::Absent).then_some(Capability { isolation, scheme, merges: false })
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(MapSession(self)))
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

fn scan_rows(rows: &Rows, from: &[u8], to: Option<&[u8]>, limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> usize {
    let range = rows.range(from.to_vec()..).take_while(|(key, _)| to.is_none_or(|to| key.as_slice() < to));
    range.take(limit).map(|(key, value)| visit(key, value)).count()
}

struct MapSession<'a>(&'a Map);

impl Session for MapSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.rows.lock().unwrap().insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let rows = self.0.rows.lock().unwrap();
        value.extend_from_slice(rows.get(key).map_or(&[], |found| found));
        Ok(rows.contains_key(key))
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.0.rows.lock().unwrap().remove(key);
        Ok(())
    }

    fn merge_add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        let mut rows = self.0.rows.lock().unwrap();
        let value = sum(rows.get(key).map(Vec::as_slice), delta)?;
        rows.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        self.0.rows.lock().unwrap().retain(|key, _| key.as_slice() < from || key.as_slice() >= to);
        Ok(())
    }

    fn scan(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        Ok(scan_rows(&self.0.rows.lock().unwrap(), from, None, limit, visit))
    }

    fn write_batch(&mut self, writes: &[Write]) -> Result<()> {
        writes.iter().try_for_each(|write| match write {
            Write::Put(key, value) => self.put(key, value),
            Write::Delete(key) => self.delete(key),
        })
    }

    fn transact(&mut self, _: Access, work: &mut Work) -> Result<Attempts> {
        let map = self.0;
        retry(|| {
            let mut rows = map.rows.lock().unwrap();
            let before = (map.fault != Fault::NoIsolation).then(|| rows.clone());
            let verdict = if map.fault == Fault::NoIsolation {
                drop(rows);
                return work(&mut Apart(MapSession(map)));
            } else {
                work(&mut Alone(&mut rows))?
            };
            let fails = map.attempts.fetch_add(1, Relaxed) % 3 == 1;
            let conflicts = fails && matches!(map.fault, Fault::Conflicts | Fault::KeepsConflicts);
            let keeps = match map.fault {
                Fault::NoRollback => true,
                Fault::KeepsConflicts if conflicts => true,
                _ => verdict == Verdict::Commit && !conflicts,
            };
            if !keeps {
                *rows = before.expect("cloned above");
            }
            if conflicts { Err(Conflict.into()) } else { Ok(verdict) }
        })
    }
}

/// A transaction that holds the lock of the map.
struct Alone<'a>(&'a mut Rows);

impl Transaction for Alone<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        value.extend_from_slice(self.0.get(key).map_or(&[], |found| found));
        Ok(self.0.contains_key(key))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.0.remove(key);
        Ok(())
    }

    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        let value = sum(self.0.get(key).map(Vec::as_slice), delta)?;
        self.put(key, &value)
    }

    fn scan(&mut self, from: &[u8], to: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        Ok(scan_rows(self.0, from, Some(to), limit, visit))
    }
}

/// A transaction whose operations are single operations, with other threads in between.
struct Apart<'a>(MapSession<'a>);

impl Transaction for Apart<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.0.get(key, value);
        std::thread::yield_now();
        found
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.put(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.0.delete(key)
    }

    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        let mut value = Vec::new();
        let found = self.get(key, &mut value)?;
        let value = sum(Some(value.as_slice()).filter(|_| found), delta)?;
        self.put(key, &value)
    }

    fn scan(&mut self, from: &[u8], to: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let found = scan_rows(&self.0.0.rows.lock().unwrap(), from, Some(to), limit, visit);
        std::thread::yield_now();
        Ok(found)
    }
}

fn plan(directory: &Path, workloads: &str, threads: usize, ops: u64) -> Plan {
    Plan {
        workloads: workload::parse(workloads).unwrap(),
        records: 200,
        ops: Some(ops),
        threads,
        setup: Setup { memory_budget: 2 << 20, mode: Mode::Product, deterministic: false },
        hot: 10,
        warehouses: 2,
        directory: directory.to_owned(),
        ..Plan::default()
    }
}

/// The lines and the error of a bench.
fn run(opener: &dyn Opener, workloads: &str, threads: usize, ops: u64) -> (Vec<Line>, Result<()>) {
    let (dir, mut lines) = (tempfile::tempdir().unwrap(), Vec::new());
    let result = bench::run(&plan(dir.path(), workloads, threads, ops), opener, &mut lines);
    (lines, result)
}

fn figures(line: &Line) -> &TransactionFigures {
    line.transactions.as_ref().expect("a transactional workload")
}

#[test]
fn all_sums_are_right_on_pandodb() {
    for isolation in [pandodb::Isolation::Serializable, pandodb::Isolation::Snapshot] {
        for threads in [1, 4] {
            let pando = Pando::new(IndexKind::default()).isolation(isolation);
            let (lines, result) = run(&pando, "transactions", threads, 400);
            result.unwrap();
            assert_eq!(lines.len(), TRANSACTIONS.len());
            for (line, workload) in lines.iter().zip(TRANSACTIONS) {
                let (what, found) = (format!("{line:?}"), figures(line));
                // Half of the steps of `pop` are pushes, which are not counted.
                let ops = if workload.name == "pop" { 200 } else { 400 };
                assert_eq!((line.workload.as_str(), line.ops, line.latency.count), (workload.name, ops, ops), "{what}");
                assert_eq!((line.wrong_answers, line.checked_answers), (0, 1), "{what}");
                assert_eq!(found.committed + found.rolled_back, ops, "{what}");
                assert!(found.attempts_mean >= 1.0 && found.attempts_max >= 1, "{what}");
                assert!(threads > 1 || found.conflicts == 0, "one thread conflicts with nothing: {what}");
                let is_plain = workload.needs() != [Need::Transactions];
                let name = if isolation == pandodb::Isolation::Snapshot { "snapshot" } else { "serializable" };
                assert_eq!(found.isolation, if is_plain { "none" } else { name }, "{what}");
                assert!(line.write_amplification > 0.0 && line.space_amplification > 0.0, "{what}");
                assert!(serde_json::to_string(line).unwrap().contains("\"isolation\""));
            }
            let counters = lines.iter().find(|line| line.workload == "counters").unwrap();
            assert_eq!(figures(counters).conflicts, 0, "merges do not conflict");
        }
    }
}

#[test]
fn all_sums_are_right_in_memory() {
    let (lines, result) = run(&MapOpener(Fault::None), "transactions", 3, 300);
    result.unwrap();
    assert!(lines.iter().all(|line| figures(line).attempts_max == 1), "a single writer has no conflicts");
    let rolled_back = |name: &str| figures(lines.iter().find(|line| line.workload == name).unwrap()).rolled_back;
    assert!((1..30).contains(&rolled_back("neworder")), "1 % of 300 orders: {}", rolled_back("neworder"));
    assert_eq!(rolled_back("payment"), 0);
}

#[test]
fn conflicts_are_counted_and_have_no_effect() {
    let (lines, result) = run(&MapOpener(Fault::Conflicts), "bank,neworder,pop", 1, 300);
    result.unwrap();
    for line in &lines {
        let found = figures(line);
        let ops = if line.workload == "pop" { 150 } else { 300 };
        assert!((ops / 2 - 2..=ops / 2 + 2).contains(&found.conflicts), "{found:?}");
        assert_eq!((line.ops, found.attempts_max), (ops, 2), "{found:?}");
    }
}

#[test]
fn missing_isolation_makes_the_sums_wrong() {
    for name in ["bank", "smallbank", "neworder", "payment-getput", "counters", "update-one", "pop"] {
        // The threads meet by chance, so a workload has several runs.
        let is_found = (0..20).any(|_| {
            let (lines, result) = run(&MapOpener(Fault::NoIsolation), name, 4, 4000);
            assert_eq!(result.is_err(), lines[0].wrong_answers > 0, "{name}: {result:?}");
            result.is_err()
        });
        assert!(is_found, "{name} does not notice that transactions are not isolated");
    }
}

#[test]
fn missing_rollbacks_make_the_sums_wrong() {
    let cases = [("neworder", Fault::NoRollback), ("bank", Fault::None), ("payment", Fault::KeepsConflicts)];
    for (name, fault) in cases.into_iter().chain([("counters", Fault::KeepsConflicts), ("pop", Fault::KeepsConflicts)])
    {
        let (lines, result) = run(&MapOpener(fault), name, 1, 1000);
        assert_eq!(result.is_err(), fault != Fault::None, "{name}, {fault:?}: {result:?}");
        assert_eq!(lines[0].wrong_answers > 0, fault != Fault::None);
        if let Err(error) = result {
            assert!(error.to_string().contains("the committed transactions make"), "{error}");
        }
    }
}

#[test]
fn an_engine_without_transactions_refuses() {
    let (lines, result) = run(&MapOpener(Fault::Absent), "bank,bank-plain,counters-plain,update-one-mutex", 1, 100);
    result.unwrap();
    assert_eq!(lines[0].refused.as_deref(), Some("this map has no transactions"));
    assert!(lines[1..].iter().all(|line| line.ops == 100 && line.refused.is_none()));
}

fn settings(records: u64) -> Settings {
    let (dist, seed, threads, value_len) = (Dist::Uniform, 1, 1, 100);
    Settings { records, dist, seed, threads, value_len, hot: 10, warehouses: 10, merges: true }
}

/// The number of rows of each table of a program.
fn tables(program: &dyn Program) -> BTreeMap<char, u64> {
    let (mut tables, mut last) = (BTreeMap::new(), Vec::new());
    program
        .rows(&mut |key, _| {
            assert!(key != last, "each key exists once");
            last = key.to_vec();
            *tables.entry(char::from(key[0])).or_insert(0) += 1;
            Ok(())
        })
        .unwrap();
    tables
}

#[test]
fn stores_have_the_specified_sizes() {
    let tpcc = tables(open(Transactional::Payment { merges: true }, settings(1_000_000)).as_ref());
    let expected = [('c', 300_000), ('d', 100), ('i', 100_000), ('n', 300_000), ('s', 1_000_000), ('w', 10)];
    assert_eq!(tpcc, expected.into_iter().chain([('y', 10), ('z', 100)]).collect());
    let apart = tables(open(Transactional::Payment { merges: false }, settings(10_000)).as_ref());
    assert_eq!((apart[&'s'], apart[&'c'], apart.get(&'y')), (10_000, 3_000, None));
    let bank = tables(open(Transactional::SmallBank, settings(1000)).as_ref());
    assert_eq!(bank, [('c', 1000), ('k', 1000), ('s', 1000)].into());
}

#[test]
fn tallies_wrap_and_a_single_step_is_committed() {
    let mut tally = Tally([i64::MAX, 1, 0, 0, 0, 0]);
    tally.add(&Tally([1, 2, 0, 0, 0, 0]));
    assert_eq!(tally, Tally([i64::MIN, 3, 0, 0, 0, 0]));
    assert!(Step::once().attempts.committed && Step::once().kind == StepKind::Write);
}
