//! Tests of the events that a subscriber of `tracing` receives, with the feature `tracing`.

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard};

use pandodb::device::sim::{Fault, FaultKind, OpClass, SimDevice};
use pandodb::device::{Device, MemDevice};
use pandodb::{Durability, Error, Store, StoreBuilder};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// An event: its level, the spans around it, and its text with all fields.
#[derive(Clone, Debug)]
struct Told {
    level: tracing::Level,
    within: Vec<String>,
    text: String,
}

#[derive(Default)]
struct Records {
    spans: Vec<String>,
    told: Vec<Told>,
}

static RECORDS: Mutex<Records> = Mutex::new(Records { spans: Vec::new(), told: Vec::new() });
/// Each test holds this mutex, because the subscriber is global to the process.
static TURN: Mutex<()> = Mutex::new(());

thread_local! {
    static WITHIN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn records() -> MutexGuard<'static, Records> {
    RECORDS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A subscriber that records all events with the target `pandodb`.
struct Recorder;

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = match field.name() {
            "message" => format!("{value:?}"),
            name => format!(" {name}={value:?}"),
        };
        self.0.push_str(&text);
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "pandodb"
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = Text(span.metadata().name().to_owned());
        span.record(&mut text);
        let spans = &mut records().spans;
        spans.push(text.0);
        Id::from_u64(spans.len() as u64)
    }
    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let within = WITHIN.with_borrow(|within| within.clone());
        records().told.push(Told { level: *event.metadata().level(), within, text: text.0 });
    }
    fn enter(&self, span: &Id) {
        let name = records().spans[span.into_u64() as usize - 1].clone();
        WITHIN.with_borrow_mut(|within| within.push(name));
    }
    fn exit(&self, _span: &Id) {
        WITHIN.with_borrow_mut(|within| within.pop());
    }
}

/// Begins to record events. While a test holds the returned guard, no other test runs.
fn record() -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let _ = tracing::subscriber::set_global_default(Recorder);
    records().told.clear();
    turn
}

/// Returns the events that were recorded until now and whose texts begin with `start`.
fn told(start: &str) -> Vec<Told> {
    records().told.iter().filter(|told| told.text.starts_with(start)).cloned().collect()
}

#[track_caller]
fn one(start: &str) -> Told {
    let found = told(start);
    assert!(found.len() == 1, "{start}: {:?}", if found.is_empty() { told("") } else { found });
    found[0].clone()
}

/// The number in a field of an event.
fn number(told: &Told, field: &str) -> u64 {
    let value = told.text.split(' ').find_map(|word| word.strip_prefix(field)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("{field} in {told:?}")).parse().unwrap()
}

fn on(device: &Arc<dyn Device>) -> StoreBuilder {
    Store::builder("traced")
        .device(device.clone())
        .memory_budget(8 << 20)
        .memtable_bytes(64 << 10)
        .background_threads(0)
}

#[test]
fn opening_work_and_closing_are_reported() {
    let _turn = record();
    let device: Arc<dyn Device> = MemDevice::new();
    let store = on(&device).open().unwrap();
    let opened = one("opened");
    assert_eq!(
        (opened.level, opened.within),
        (tracing::Level::INFO, vec!["open path=\"(memory)\" read_only=false".into()])
    );
    let rows = store.keyspace("rows").unwrap();
    assert_eq!(one("keyspace created").text, "keyspace created keyspace=\"rows\"");
    for i in 0..3_000u32 {
        rows.put(i.wrapping_mul(2_654_435_761).to_be_bytes(), [7; 100]).unwrap();
    }
    rows.compact(..).unwrap();
    let packed = told("memtable packed");
    assert!(packed.len() > 3 && packed.iter().all(|told| told.level == tracing::Level::DEBUG), "{packed:?}");
    assert!(packed.iter().all(|told| number(told, "run_bytes") > 10_000), "{packed:?}");
    assert!(packed.iter().all(|told| told.within.contains(&"step keyspace=\"rows\"".into())), "{packed:?}");
    let compacted = told("compaction finished");
    assert!(compacted.iter().any(|told| number(told, "inputs") > 1 && number(told, "output_bytes") > 10_000));
    let before = told("checkpoint taken").len();
    store.checkpoint().unwrap();
    let taken = told("checkpoint taken");
    assert!(
        taken.len() > before && taken.iter().all(|told| told.within.last().is_some_and(|span| span == "checkpoint"))
    );
    store.keyspace("gone").unwrap();
    store.drop_keyspace("gone").unwrap();
    assert_eq!(one("keyspace dropped").text, "keyspace dropped keyspace=\"gone\"");
    rows.put("more", "and more").unwrap();
    drop(rows);
    store.close().unwrap();
    let closed = one("closed");
    assert!(closed.text.starts_with("closed clean=true") && closed.within == ["close"], "{closed:?}");
}

#[test]
fn recovery_reports_the_number_of_replayed_records() {
    let _turn = record();
    let sim = SimDevice::new(1);
    let device: Arc<dyn Device> = sim.clone();
    let store = on(&device).open().unwrap();
    let rows = store.keyspace("rows").unwrap();
    for i in 0..100u32 {
        rows.put_with(i.to_be_bytes(), "row", Durability::Synced).unwrap();
    }
    let crashed: Arc<dyn Device> = SimDevice::from_image(&sim.image(), 2);
    records().told.clear();
    let again = on(&crashed).open().unwrap();
    let opened = one("opened");
    assert!(number(&opened, "replayed_records") >= 100 && number(&opened, "replayed_bytes") > 1_000, "{opened:?}");
    assert_eq!(number(&opened, "keyspaces"), 1);
    drop((again, store));
}

#[test]
fn failures_are_reported_at_their_level() {
    let _turn = record();
    let sim = SimDevice::new(1);
    let device: Arc<dyn Device> = sim.clone();
    let store = on(&device).open().unwrap();
    let rows = store.keyspace("rows").unwrap();
    for i in 0..3_000u32 {
        rows.put(i.to_be_bytes(), [7; 100]).unwrap();
    }
    store.settle().unwrap();
    assert!(told("damage").is_empty() && told("disk full").is_empty());
    // A sector that cannot be read is reported in an event that names the keyspace. This holds for a get and for a
    // scan.
    let data = Fault { file: Some("data".into()), ..Fault::sticky(FaultKind::IoError(OpClass::Read), 0) };
    let (store, rows) = {
        drop(rows);
        store.close().unwrap();
        let store = on(&device).open().unwrap();
        let rows = store.keyspace("rows").unwrap();
        (store, rows)
    };
    sim.set_fault(Some(data));
    assert!(rows.get(1500u32.to_be_bytes()).unwrap_err().is_damage());
    let damage = one("damage keyspace=\"rows\"");
    assert_eq!(damage.level, tracing::Level::WARN);
    assert!(rows.iter().any(|entry| entry.is_err()));
    assert_eq!(told("damage").len(), 2);
    sim.set_fault(Some(Fault::sticky(FaultKind::StorageFull, 0)));
    let full = (0..100_000u32).map(|i| rows.put(i.to_be_bytes(), [8; 1000])).find_map(Result::err);
    assert!(matches!(full, Some(Error::DiskFull { .. })), "{full:?}");
    assert!(told("disk full").iter().any(|told| told.level == tracing::Level::WARN));
    sim.set_fault(Some(Fault::sticky(FaultKind::IoError(OpClass::Write), 0)));
    assert!(rows.put_with("k", "v", Durability::Synced).is_err());
    let poisoned = one("the store refuses writes");
    assert!(poisoned.level == tracing::Level::ERROR && poisoned.text.contains("first="), "{poisoned:?}");
    assert!(rows.put("k", "v").is_err());
    one("the store refuses writes");
    assert!(store.close().is_err());
    one("closed clean=false");
}

#[test]
fn stalled_writers_are_reported_and_other_operations_are_not() {
    let _turn = record();
    let device: Arc<dyn Device> = MemDevice::new();
    let store = on(&device).background_threads(1).open().unwrap();
    let rows = store.keyspace("rows").unwrap();
    (0..10u32).for_each(|i| rows.put(i.to_be_bytes(), "quick").unwrap());
    assert!((0..10u32).all(|i| rows.get(i.to_be_bytes()).unwrap().is_some()));
    let quiet = records().told.iter().all(|told| !told.within.is_empty() || told.text.starts_with("keyspace"));
    assert!(quiet, "neither a put nor a get is reported");
    // Write faster than one thread can pack and compact.
    let mut i = 0u32;
    while told("writer stalled").is_empty() && i < 2_000_000 {
        i += 1;
        rows.put(i.wrapping_mul(2_654_435_761).to_be_bytes(), [9; 200]).unwrap();
    }
    let stalled = told("writer stalled");
    assert!(!stalled.is_empty(), "{i} writes");
    assert!(stalled.iter().all(|told| number(told, "waited_us") >= 1_000), "{stalled:?}");
    store.close().unwrap();
}
