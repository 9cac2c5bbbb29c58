//! A merge operator that calls a store gets [`Error::Reentrant`], regardless of where the operator runs. The call never
//! blocks.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use pandodb::device::MemDevice;
use pandodb::{Durability, Error, Keyspace, KeyspaceOptions, MergeOperator, Result, Store};

/// The call that the operator makes inside each fold.
type Call = Box<dyn FnMut() + Send>;

/// An operator that joins its operands, and makes the call that was set.
#[derive(Clone, Default)]
struct Caller(Arc<Mutex<Option<Call>>>);

impl Caller {
    fn set(&self, call: impl FnMut() + Send + 'static) {
        *self.0.lock().unwrap() = Some(Box::new(call));
    }

    fn call(&self) {
        // Take the call out of the mutex while it runs, so that a nested fold does not block here.
        let call = self.0.lock().unwrap().take();
        if let Some(mut call) = call {
            call();
            self.0.lock().unwrap().get_or_insert(call);
        }
    }
}

impl MergeOperator for Caller {
    fn name(&self) -> &str {
        "caller"
    }
    fn validate(&self, operand: &[u8]) -> Result<(), String> {
        if operand == b"call" {
            self.call();
        }
        Ok(())
    }
    fn full_merge(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        self.call();
        Some(base.into_iter().chain(operands.iter().copied()).collect::<Vec<_>>().concat())
    }
    fn partial_merge(&self, _key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        self.call();
        Some([older, newer].concat())
    }
}

/// Runs `body` on a thread of its own and fails if `body` does not end.
fn ends(what: String, body: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    match wait.recv_timeout(Duration::from_secs(30)) {
        Ok(()) => {}
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what} does not end"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("{what} panicked"),
    }
}

fn open(threads: usize) -> (Caller, Store, Keyspace) {
    let caller = Caller::default();
    let builder = Store::builder("s").device(MemDevice::new()).memory_budget(2 << 20).background_threads(threads);
    let store = builder.operator(Arc::new(caller.clone())).open().unwrap();
    let keyspace = store.keyspace_with("k", KeyspaceOptions::new().merge(caller.clone())).unwrap();
    (caller, store, keyspace)
}

/// Every call that an operator could make, with its name.
type Named = (&'static str, fn(&Store, &Keyspace) -> Result<()>);
const CALLS: &[Named] = &[
    ("get", |_, keyspace| keyspace.get("k").map(drop)),
    ("multi_get", |_, keyspace| keyspace.multi_get(&["k", "other"]).map(drop)),
    ("contains", |_, keyspace| keyspace.contains("k").map(drop)),
    ("iter", |_, keyspace| keyspace.iter().next().map_or(Ok(()), |entry| entry.map(drop))),
    ("snapshot", |store, keyspace| keyspace.at(&store.snapshot()).get("k").map(drop)),
    ("put", |_, keyspace| keyspace.put("other", "x")),
    ("large put", |_, keyspace| keyspace.put("other", vec![1; 10_000])),
    ("delete", |_, keyspace| keyspace.delete("other")),
    ("merge", |_, keyspace| keyspace.merge("k", "inner")),
    ("batch", |store, _| store.batch().commit(Durability::Synced)),
    ("compact", |_, keyspace| keyspace.compact(..)),
    ("settle", |store, _| store.settle()),
    ("pack", |store, _| store.pack()),
    ("checkpoint", |store, _| store.checkpoint()),
    ("persist", |store, _| store.persist(Durability::Synced)),
    ("keyspace", |store, _| store.keyspace("new").map(drop)),
    ("drop_keyspace", |store, _| store.drop_keyspace("k")),
    ("stats", |store, _| store.stats().map(drop)),
    ("verify", |store, _| store.verify().map(drop)),
    ("close", |store, _| store.clone().close()),
];

#[test]
fn an_operator_that_calls_the_store_is_refused_in_reads_and_in_background_work() {
    for threads in [0, 1] {
        for (name, call) in CALLS.iter().copied() {
            ends(format!("{name} inside a fold, with {threads} workers"), move || {
                let (caller, store, keyspace) = open(threads);
                let seen = Arc::new(Mutex::new(Vec::new()));
                let (noted, inner) = (seen.clone(), (store.clone(), keyspace.clone()));
                caller.set(move || noted.lock().unwrap().push(call(&inner.0, &inner.1)));
                keyspace.merge("k", "a").unwrap();
                keyspace.merge("k", "call").unwrap();
                assert_eq!(keyspace.get("k").unwrap().unwrap(), "acall");
                // If the store has a worker thread, the fold runs on it.
                keyspace.compact(..).unwrap();
                keyspace.merge("k", "b").unwrap();
                store.settle().unwrap();
                assert_eq!(keyspace.iter().next().unwrap().unwrap().1, "acallb");
                let seen = std::mem::take(&mut *seen.lock().unwrap());
                assert!(seen.len() >= 4, "validate, two reads, a compaction: {}", seen.len());
                assert!(seen.iter().all(|answer| matches!(answer, Err(Error::Reentrant))), "{name}: {seen:?}");
                assert!(store.verify().unwrap().is_clean());
                // The operator holds handles of its own store. Drop these handles.
                caller.set(|| ());
            });
        }
    }
}

/// A close on the worker thread would wait for this thread itself, so the close runs on another thread.
#[test]
fn an_operator_may_drop_the_last_handle() {
    ends("dropping the last handle inside a fold".into(), || {
        let device = MemDevice::new();
        let caller = Caller::default();
        let open = || {
            let builder = Store::builder("s").device(device.clone()).memory_budget(1 << 20).memtable_bytes(8 << 10);
            builder.operator(Arc::new(caller.clone())).open()
        };
        let store = open().unwrap();
        let keyspace = store.keyspace_with("k", KeyspaceOptions::new().merge(caller.clone())).unwrap();
        let mut kept = Some((store.clone(), keyspace.clone()));
        let (begun, in_fold) = mpsc::channel();
        let (go, gone) = mpsc::channel();
        let (survived, dropped) = mpsc::channel();
        caller.set(move || {
            if let Some(last) = kept.take() {
                begun.send(()).unwrap();
                gone.recv_timeout(Duration::from_secs(20)).unwrap();
                drop(last);
                // A close on this thread would wait for this thread itself. In an earlier version such a close panicked
                // here, and the store was not closed.
                survived.send(()).unwrap();
            }
        });
        // Write more bytes than a memtable holds, so that a worker packs the memtable and folds the operands.
        let written = 120u8;
        (0..written).for_each(|i| keyspace.merge([i % 10], [b'x'; 100]).unwrap());
        in_fold.recv_timeout(Duration::from_secs(20)).unwrap();
        drop((store, keyspace));
        go.send(()).unwrap();
        dropped.recv_timeout(Duration::from_secs(20)).expect("the operator goes on");
        caller.set(|| ());
        // The store can be opened as soon as the close is complete.
        let again = loop {
            match open() {
                Ok(store) => break store,
                Err(Error::Locked { .. }) => std::thread::sleep(Duration::from_millis(1)),
                Err(e) => panic!("{e}"),
            }
        };
        let bytes: usize = again
            .keyspace_with("k", KeyspaceOptions::new().merge(caller.clone()))
            .unwrap()
            .iter()
            .map(|entry| entry.unwrap().1.len())
            .sum();
        assert_eq!(bytes, usize::from(written) * 100);
    });
}
