//! Runs all workloads at a small size, on PandoDB and on an engine that gives wrong answers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use pandodb::IndexKind;

use super::*;
use crate::engine::{Need, Rows, Session, Write};
use crate::pando::Pando;
use crate::workload::{self, ALL, Verb};

fn plan(directory: &Path, workloads: &str) -> Plan {
    Plan {
        workloads: workload::parse(workloads).unwrap(),
        records: 3000,
        threads: 2,
        setup: Setup { memory_budget: 1 << 20, mode: Mode::Product, deterministic: false },
        directory: directory.to_owned(),
        ..Plan::default()
    }
}

fn lines(plan: &Plan, opener: &dyn Opener) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    run(plan, opener, &mut lines).unwrap();
    lines
}

#[test]
fn every_workload_is_measured_and_answers_are_right() {
    let dir = tempfile::tempdir().unwrap();
    for cache in [Cache::AsIs, Cache::Cold] {
        let plan = Plan { cache, ..plan(dir.path(), "all") };
        let lines = lines(&plan, &Pando::new(IndexKind::default()));
        assert_eq!(lines.len(), ALL.len());
        for (line, workload) in lines.iter().zip(ALL) {
            let what = format!("{line:?}");
            assert_eq!(line.workload, workload.name);
            assert_eq!((line.wrong_answers, line.refused.as_deref()), (0, None), "{what}");
            let records = if workload.set == DataSet::Main { 3000 } else { line.asked.records };
            assert_eq!(line.ops, if workload.name == "delete" { 2700 } else { records }, "{what}");
            assert_eq!(line.series.ops.iter().sum::<u64>(), line.ops, "{what}");
            assert_eq!(line.latency.count, line.ops);
            assert!(line.latency.p50_us <= line.latency.p99_us && line.latency.p99_99_us <= line.latency.max_us);
            assert_eq!(line.write_amplification > 0.0, workload.writes(), "{what}");
            assert!(line.space_amplification > 0.5, "{what}");
            assert!(line.peak_rss_bytes > 1 << 20, "{what}");
            if workload.name == "readmiss" {
                let counted = |name: &str| line.inside.counters[name];
                assert!(counted("filters") > 1000 && counted("false_positives") * 25 < counted("filters"), "{what}");
            }
            let is_checked = !matches!(workload.kind, Kind::Load | Kind::LoadSeq | Kind::LoadMixed | Kind::Expiry);
            let is_blind = matches!(workload.kind, Kind::Mix([(100, Verb::Update)]));
            assert_eq!(line.checked_answers > 0, is_checked && !is_blind, "{what}");
        }
    }
}

#[test]
fn a_bulk_load_has_the_rows_of_a_load() {
    let dir = tempfile::tempdir().unwrap();
    for key_len in [8, 24] {
        let plan = Plan { key_len, ..plan(dir.path(), "load-bulk,c,scan-10") };
        let lines = lines(&plan, &Pando::new(pandodb::BtreeOptions::default()));
        assert_eq!(lines.iter().map(|line| line.ops).collect::<Vec<_>>(), [3000; 3]);
        assert_eq!(lines.iter().map(|line| line.wrong_answers).collect::<Vec<_>>(), [0; 3]);
        assert_eq!((lines[1].found, lines[2].found), (3000, 30_000), "keys of {key_len} bytes");
    }
}

#[test]
fn the_same_seed_causes_the_same_device_operations() {
    let run = |seed| {
        let dir = tempfile::tempdir().unwrap();
        let setup = Setup { memory_budget: 1 << 20, mode: Mode::Product, deterministic: true };
        let plan = Plan { seed, threads: 1, setup, ..plan(dir.path(), "load,a,e,merge,delete,delete-scan") };
        let lines = lines(&plan, &Pando::new(IndexKind::default()));
        lines.into_iter().map(|line| (line.stream, line.inside.counters)).collect::<Vec<_>>()
    };
    let once = run(7);
    assert_eq!(once, run(7));
    assert_ne!(once, run(8));
    assert!(once[0].1["device.data.write_bytes"] > 300_000, "{:?}", once[0].1);
}

#[test]
fn an_open_loop_counts_waiting_as_latency() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan { rate: Some(1000.0), ops: Some(200), threads: 1, ..plan(dir.path(), "queue") };
    let line = &lines(&plan, &Slow::default())[0];
    // The engine can execute 200 operations per second, but 1,000 per second are issued, so the last operation waits
    // for nearly 1 s.
    assert!(line.seconds > 0.9 && line.latency.max_us > 500_000.0, "{:?}", line.latency);
    let closed = Plan { rate: None, ..plan };
    let line = &lines(&closed, &Slow::default())[0];
    assert!(line.latency.max_us < 500_000.0, "{:?}", line.latency);
}

#[test]
fn a_workload_ends_when_its_time_is_up() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan { seconds: Some(0.3), ops: Some(1_000_000_000), ..plan(dir.path(), "load,c") };
    let lines = lines(&plan, &Pando::new(IndexKind::default()));
    assert_eq!(lines[0].ops, 3000, "a load processes all records");
    assert!((0.25..3.0).contains(&lines[1].seconds) && lines[1].ops > 0, "{}", lines[1].seconds);
}

#[test]
fn wrong_answers_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    // The sums of only a few counters are tracked. So the test must add to many counters.
    let plan = Plan {
        ops: Some(30_000),
        dist: Some(Dist::Uniform),
        ..plan(dir.path(), "load,c,readmiss,merge,scan-prefix,multi-get,queue")
    };
    let lines = lines(&plan, &Liar);
    for line in &lines[1..] {
        assert!(line.wrong_answers > 0, "{}: {} of {} wrong", line.workload, line.wrong_answers, line.checked_answers);
    }
}

#[test]
fn a_workload_that_an_engine_lacks_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let lines = lines(&plan(dir.path(), "expiry,load"), &Slow { nap: Duration::ZERO, ..Slow::default() });
    assert_eq!(lines[0].refused.as_deref(), Some("no range deletes here"));
    assert_eq!((lines[0].ops, lines[1].ops), (0, 3000));
}

#[test]
fn deleted_rows_that_still_exist_are_wrong_answers() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = Slow { nap: Duration::ZERO, keeps: true, ..Slow::default() };
    let lines = lines(&plan(dir.path(), "load,delete,delete-scan"), &keeper);
    assert!(lines[1].wrong_answers > 800 && lines[2].wrong_answers > 2000, "{lines:?}");
}

#[test]
fn events_that_do_not_expire_are_wrong_answers() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan { threads: 1, ..plan(dir.path(), "expiry") };
    let line = &lines(&plan, &Pando::new(IndexKind::default()))[0];
    assert_eq!((line.wrong_answers, line.checked_answers), (0, 1), "{line:?}");
    let keeper = Slow { nap: Duration::ZERO, keeps: true, ..Slow::default() };
    assert_eq!(lines(&plan, &keeper)[0].wrong_answers, 1);
}

#[test]
fn scans_that_find_nothing_are_wrong_answers() {
    let dir = tempfile::tempdir().unwrap();
    let blind = Slow { nap: Duration::ZERO, is_blind: true, ..Slow::default() };
    let lines = lines(&plan(dir.path(), "load,e,scan-long"), &blind);
    assert!(lines[1].wrong_answers > 2000 && lines[2].wrong_answers == 3000, "{lines:?}");
}

/// The lines of a workload on a map with a fault. The load of the data set comes first.
fn lines_with(fault: Fault, workloads: &str) -> Vec<Line> {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Slow { nap: Duration::ZERO, fault: Some(fault), ..Slow::default() };
    lines(&Plan { threads: 1, ..plan(dir.path(), workloads) }, &faulty)
}

#[test]
fn faults_in_the_new_operations_are_wrong_answers() {
    for (fault, workloads, least) in [
        (Fault::ScansForwards, "load,reverse-scan", 2000),
        (Fault::ScansPast, "load,reverse-scan", 2000),
        (Fault::ScansPast, "timeseries", 5000),
        (Fault::BatchesKeep, "secondary-load,secondary-update", 100),
        (Fault::BatchesKeep, "secondary-load,secondary-update,secondary-lookup", 100),
        (Fault::BatchesTear, "secondary-load", 500),
        (Fault::LoadsLess, "load-sorted", 10),
        (Fault::Truncates, "mixed-size-load,mixed-size-c", 500),
        (Fault::Truncates, "bigval-4k-load,bigval-4k-scan", 50),
    ] {
        let lines = lines_with(fault, workloads);
        let last = lines.last().unwrap();
        assert!(last.wrong_answers >= least, "{fault:?} in {workloads}: {} wrong", last.wrong_answers);
    }
    for group in
        ["load,reverse-scan,hotspot-write", "timeseries", "secondary", "load-sorted", "mixed-size", "bigval-4k"]
    {
        let dir = tempfile::tempdir().unwrap();
        let faultless = Slow { nap: Duration::ZERO, keeps: true, ..Slow::default() };
        for line in lines(&plan(dir.path(), group), &faultless) {
            assert_eq!((line.wrong_answers, line.refused.as_deref()), (0, None), "{line:?}");
        }
    }
}

#[test]
fn workloads_of_a_set_that_cannot_be_loaded_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let lines = lines(&plan(dir.path(), "secondary-update,reverse-scan,load-sorted,bigval-4k-a"), &Liar);
    let refused: Vec<_> = lines.iter().map(|line| (line.workload.as_str(), line.refused.is_some())).collect();
    let expected = [
        ("secondary-load", true),
        ("secondary-update", true),
        ("load", false),
        ("reverse-scan", true),
        ("load-sorted", true),
        ("bigval-4k-load", true),
        ("bigval-4k-a", true),
    ];
    assert_eq!(refused, expected);
    assert!(
        lines[6].refused.as_deref().unwrap().contains("over the limits 100 B and 2000 B"),
        "{:?}",
        lines[6].refused
    );
}

#[test]
fn a_matched_run_opens_the_engine_with_the_memory_of_the_rival() {
    let dir = tempfile::tempdir().unwrap();
    let matched = Some(Matched { rival: "rocksdb".to_owned(), memory: 3 << 20 });
    let line = &lines(&Plan { matched, ..plan(dir.path(), "load") }, &Pando::new(IndexKind::default()))[0];
    assert_eq!((line.asked.memory_budget, line.given_memory, line.budget_bytes()), (1 << 20, 3 << 20, 3 << 20));
    assert_eq!(line.who(), "pando-stbe with the memory of rocksdb");
    let pool: u64 = line.configuration["pool_bytes"].parse().unwrap();
    assert!((1 << 20..3 << 20).contains(&pool), "the pool is larger than the budget of the plan: {pool}");
    let json = serde_json::to_string(line).unwrap();
    let read: Line = serde_json::from_str(&json).unwrap();
    assert_eq!((read.who(), read.given_memory, read.engine_bytes()), (line.who(), 3 << 20, line.engine_bytes()));
}

#[test]
fn only_stores_created_by_a_bench_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let precious = dir.path().join("slow");
    std::fs::create_dir(&precious).unwrap();
    std::fs::write(precious.join("thesis"), "all of it").unwrap();
    let slow = Slow { nap: Duration::ZERO, ..Slow::default() };
    let refused = run(&plan(dir.path(), "load"), &slow, &mut Vec::new()).unwrap_err().to_string();
    assert!(refused.contains("was not created by a bench"), "{refused}");
    assert!(remove_store(dir.path(), &slow).is_err() && precious.join("thesis").exists());
    std::fs::remove_dir_all(&precious).unwrap();
    // The bench removes a store that a bench created.
    (0..2).for_each(|_| drop(lines(&plan(dir.path(), "load"), &slow)));
    remove_store(dir.path(), &slow).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn settings_out_of_bounds_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let plan = plan(dir.path(), "load");
    let deterministic = Setup { deterministic: true, ..plan.setup.clone() };
    for (odd, word) in [
        (Plan { records: 0, ..plan.clone() }, "records"),
        (Plan { records: u64::MAX, ..plan.clone() }, "records"),
        (Plan { threads: 256, ..plan.clone() }, "threads"),
        (Plan { setup: deterministic, ..plan.clone() }, "deterministic"),
        (Plan { seconds: Some(1e20), ..plan.clone() }, "seconds"),
        (Plan { warm_up: f64::NAN, ..plan.clone() }, "seconds"),
        (Plan { rate: Some(0.0), ..plan.clone() }, "rate"),
        (Plan { seq_share: 101.0, ..plan.clone() }, "percentage"),
        (Plan { zeros: -1.0, ..plan.clone() }, "percentage"),
        (Plan { key_len: 7, ..plan.clone() }, "keys"),
        (Plan { value_len: 1 << 40, ..plan.clone() }, "values"),
    ] {
        let refused = run(&odd, &Liar, &mut Vec::new()).unwrap_err().to_string();
        assert!(refused.contains(word), "{refused}");
    }
    let one = Plan { records: 1, ops: Some(3), ..plan };
    lines(&Plan { workloads: ALL.to_vec().leak().iter().collect(), ..one }, &Pando::new(IndexKind::default()));
}

/// A fault of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Reverse scans return their entries in ascending order.
    ScansForwards,
    /// Scans leave out the first entry.
    ScansPast,
    /// Batches do not delete.
    BatchesKeep,
    /// Batches apply only their first write.
    BatchesTear,
    /// Bulk loads lose every hundredth row, and do not report it.
    LoadsLess,
    /// Values lose their last byte.
    Truncates,
}

/// A map whose writes are slow.
#[derive(Clone)]
struct Slow {
    nap: Duration,
    /// Deletes have no effect.
    keeps: bool,
    /// Scans find nothing.
    is_blind: bool,
    fault: Option<Fault>,
    map: std::sync::Arc<Mutex<BTreeMap<Vec<u8>, Vec<u8>>>>,
}

impl Default for Slow {
    fn default() -> Slow {
        Slow { nap: Duration::from_millis(5), keeps: false, is_blind: false, fault: None, map: Default::default() }
    }
}

impl Opener for Slow {
    fn name(&self) -> String {
        "slow".to_owned()
    }
    fn open(&self, _: &Path, _: &Setup) -> Result<Box<dyn Engine>> {
        Ok(Box::new(self.clone()))
    }
}

impl Engine for Slow {
    fn configuration(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    fn lacks(&self, need: Need) -> Option<&'static str> {
        (need == Need::RangeDelete && !self.keeps).then_some("no range deletes here")
    }
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(self.clone()))
    }
    fn settle(&self) -> Result<()> {
        Ok(())
    }
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Session for Slow {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        std::thread::sleep(self.nap);
        let len = value.len() - usize::from(self.fault == Some(Fault::Truncates));
        self.map.lock().unwrap().insert(key.to_vec(), value[..len].to_vec());
        Ok(())
    }
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let map = self.map.lock().unwrap();
        value.clear();
        value.extend(map.get(key).into_iter().flatten());
        Ok(map.contains_key(key))
    }
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        std::thread::sleep(self.nap);
        if !self.keeps {
            self.map.lock().unwrap().remove(key);
        }
        Ok(())
    }
    fn merge_add(&mut self, _: &[u8], _: u64) -> Result<()> {
        Ok(())
    }
    fn delete_range(&mut self, _: &[u8], _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn scan(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let map = self.map.lock().unwrap();
        let limit = if self.is_blind { 0 } else { limit };
        let past = usize::from(self.fault == Some(Fault::ScansPast));
        Ok(map.range(from.to_vec()..).skip(past).take(limit).map(|(key, value)| visit(key, value)).count())
    }
    fn scan_back(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        if self.fault == Some(Fault::ScansForwards) {
            return self.scan(from, limit, visit);
        }
        let map = self.map.lock().unwrap();
        let past = usize::from(self.fault == Some(Fault::ScansPast));
        Ok(map.range(..=from.to_vec()).rev().skip(past).take(limit).map(|(key, value)| visit(key, value)).count())
    }
    fn write_batch(&mut self, writes: &[Write]) -> Result<()> {
        let mut map = self.map.lock().unwrap();
        for write in writes {
            match write {
                Write::Put(key, value) => drop(map.insert(key.to_vec(), value.to_vec())),
                Write::Delete(_) if self.fault == Some(Fault::BatchesKeep) => {}
                Write::Delete(key) => drop(map.remove(*key)),
            }
            if self.fault == Some(Fault::BatchesTear) {
                break;
            }
        }
        Ok(())
    }
    fn load_sorted(&mut self, rows: &mut Rows) -> Result<u64> {
        let (mut key, mut value, mut loaded) = (Vec::new(), Vec::new(), 0);
        while rows(&mut key, &mut value) {
            if self.fault != Some(Fault::LoadsLess) || loaded % 100 != 0 {
                self.map.lock().unwrap().insert(key.clone(), value.clone());
            }
            loaded += 1;
        }
        Ok(loaded)
    }
}

/// Returns the same value for every key.
struct Liar;

impl Opener for Liar {
    fn name(&self) -> String {
        "liar".to_owned()
    }
    fn open(&self, _: &Path, _: &Setup) -> Result<Box<dyn Engine>> {
        Ok(Box::new(Liar))
    }
}

impl Engine for Liar {
    fn longest(&self) -> (usize, usize) {
        (100, 2000)
    }
    fn configuration(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Liar))
    }
    fn settle(&self) -> Result<()> {
        Ok(())
    }
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Session for Liar {
    fn put(&mut self, _: &[u8], _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn get(&mut self, _: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        *value = vec![1; 100];
        Ok(true)
    }
    fn delete(&mut self, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn merge_add(&mut self, _: &[u8], _: u64) -> Result<()> {
        Ok(())
    }
    fn delete_range(&mut self, _: &[u8], _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn scan(&mut self, from: &[u8], _: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        // One entry has a greater key and another prefix.
        let mut key = from.to_vec();
        key[0] += 1;
        visit(&key, &[1; 100]);
        Ok(1)
    }
}
