//! The adapter of fjall's two transactional databases, with the settings of the plain database.
//!
//! * `fjall-optimistic`: serialisable transactions that run concurrently. A commit holds one mutex, and checks what the
//!   transaction has read against the write sets of later commits.
//! * `fjall-single-writer`: a transaction that writes holds a mutex from its begin to its end.
//!
//! A transaction that only reads is a snapshot. fjall has no merges, so an addition reads and writes.

use std::path::Path;

use fjall::{
    CompressionType, Keyspace, OptimisticTxDatabase, OptimisticTxKeyspace, OptimisticWriteTx, PersistMode, Readable,
    SingleWriterTxDatabase, SingleWriterTxKeyspace, SingleWriterWriteTx, Snapshot,
};
use pandodb_lab::engine::{Engine, Figures, Need, Opener, Result, Rows, Session, Setup, Write};
use pandodb_lab::transactions::{
    Access, Attempts, Capability, Conflict, Isolation, Scheme, Transaction, Verdict, Work, retry, sum,
};

use super::{NO_RANGE_DELETES, Shares, Store, WORKERS, options};
use crate::stripes::Stripes;
use crate::{Promise, READ_ONLY, admit, fill, settings};

/// The durability of a commit: its journal record is in the page cache.
const BUFFERED: Option<PersistMode> = Some(PersistMode::Buffer);

/// Opens a transactional database of fjall.
pub struct FjallTransactions {
    /// Whether at most one transaction that writes exists at a time.
    pub single_writer: bool,
}

impl Opener for FjallTransactions {
    fn name(&self) -> String {
        if self.single_writer { "fjall-single-writer".into() } else { "fjall-optimistic".into() }
    }

    fn open(&self, directory: &Path, setup: &Setup) -> Result<Box<dyn Engine>> {
        admit(&self.name(), setup, Promise::FULL)?;
        let shares = Shares::of(setup.memory_budget);
        let create = || options(shares, false);
        let (transactional, plain, tree) = if self.single_writer {
            let db = configured!(SingleWriterTxDatabase::builder(directory), shares).open()?;
            let tree = db.keyspace("lab", create)?;
            let (plain, inner) = (db.inner().clone(), tree.inner().clone());
            (Kind::SingleWriter(tree, db), plain, inner)
        } else {
            let db = configured!(OptimisticTxDatabase::builder(directory), shares).open()?;
            let tree = db.keyspace("lab", create)?;
            let (plain, inner) = (db.inner().clone(), tree.inner().clone());
            (Kind::Optimistic(tree, db), plain, inner)
        };
        let plain = Store { tree, db: plain, shares, separates: false, stripes: Stripes::new() };
        Ok(Box::new(Transactional { kind: transactional, plain }))
    }
}

enum Kind {
    Optimistic(OptimisticTxKeyspace, OptimisticTxDatabase),
    SingleWriter(SingleWriterTxKeyspace, SingleWriterTxDatabase),
}

struct Transactional {
    // The fields are dropped in this order: keyspaces before their database.
    kind: Kind,
    /// The same database without transactions, for everything that is not a read or a write.
    plain: Store,
}

impl Engine for Transactional {
    fn configuration(&self) -> Vec<(String, String)> {
        let mut all = self.plain.configuration();
        all.retain(|(name, _)| name != "merge");
        let kind = match self.kind {
            Kind::Optimistic(..) => "optimistic, serialisable",
            Kind::SingleWriter(..) => "one writer at a time",
        };
        all.extend(settings([("transactions", kind.into()), ("merge", "read and write in a transaction".into())]));
        all
    }

    fn lacks(&self, need: Need) -> Option<&'static str> {
        (need == Need::RangeDelete).then_some(NO_RANGE_DELETES)
    }

    fn transactions(&self) -> Option<Capability> {
        let scheme = match self.kind {
            Kind::Optimistic(..) => Scheme::Optimistic,
            Kind::SingleWriter(..) => Scheme::SingleWriter,
        };
        Some(Capability { isolation: Isolation::Serializable, scheme, merges: false })
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Handle(self)))
    }

    fn settle(&self) -> Result<()> {
        self.plain.settle()
    }

    fn figures(&self) -> Result<Figures> {
        self.plain.figures()
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.plain.db.persist(PersistMode::SyncAll)?)
    }
}

/// An open transaction with the reads and writes that the kinds of transactions share.
trait Open: Readable {
    fn set(&mut self, tree: &Transactional, key: &[u8], value: &[u8]) -> Result<()>;
    fn unset(&mut self, tree: &Transactional, key: &[u8]) -> Result<()>;
}

impl Open for OptimisticWriteTx {
    fn set(&mut self, store: &Transactional, key: &[u8], value: &[u8]) -> Result<()> {
        self.insert(&store.plain.tree, key, value);
        Ok(())
    }

    fn unset(&mut self, store: &Transactional, key: &[u8]) -> Result<()> {
        self.remove(&store.plain.tree, key);
        Ok(())
    }
}

impl Open for SingleWriterWriteTx<'_> {
    fn set(&mut self, store: &Transactional, key: &[u8], value: &[u8]) -> Result<()> {
        let Kind::SingleWriter(tree, _) = &store.kind else { unreachable!("a transaction of this kind") };
        self.insert(tree, key, value);
        Ok(())
    }

    fn unset(&mut self, store: &Transactional, key: &[u8]) -> Result<()> {
        let Kind::SingleWriter(tree, _) = &store.kind else { unreachable!("a transaction of this kind") };
        self.remove(tree, key);
        Ok(())
    }
}

impl Open for Snapshot {
    fn set(&mut self, _: &Transactional, _key: &[u8], _value: &[u8]) -> Result<()> {
        Err(READ_ONLY.into())
    }

    fn unset(&mut self, _: &Transactional, _key: &[u8]) -> Result<()> {
        Err(READ_ONLY.into())
    }
}

struct Running<'a, T> {
    store: &'a Transactional,
    tx: T,
}

impl<T: Open> Transaction for Running<'_, T> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.tx.get(&self.store.plain.tree, key)?;
        value.extend_from_slice(found.as_deref().unwrap_or(&[]));
        Ok(found.is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.tx.set(self.store, key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.tx.unset(self.store, key)
    }

    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        let value = sum(self.tx.get(&self.store.plain.tree, key)?.as_deref(), delta)?;
        self.put(key, &value)
    }

    fn scan(&mut self, from: &[u8], to: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut count = 0;
        for guard in self.tx.range(&self.store.plain.tree, from..to).take(limit) {
            let (key, value) = guard.into_inner()?;
            visit(&key, &value);
            count += 1;
        }
        Ok(count)
    }
}

struct Handle<'a>(&'a Transactional);

impl Handle<'_> {
    fn tree(&self) -> &Keyspace {
        &self.0.plain.tree
    }

    fn write(&mut self, mut act: impl FnMut(&mut dyn Transaction) -> Result<()>) -> Result<()> {
        self.transact(Access::Write, &mut |tx| act(tx).map(|()| Verdict::Commit)).map(drop)
    }
}

impl Session for Handle<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(|tx| tx.put(key, value))
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.tree().get(key)?;
        value.extend_from_slice(found.as_deref().unwrap_or(&[]));
        Ok(found.is_some())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.write(|tx| tx.delete(key))
    }

    fn merge_add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        self.write(|tx| tx.add(key, delta))
    }

    fn delete_range(&mut self, _from: &[u8], _to: &[u8]) -> Result<()> {
        Err(NO_RANGE_DELETES.into())
    }

    fn scan(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        self.0.plain.session()?.scan(from, limit, visit)
    }

    fn scan_back(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        self.0.plain.session()?.scan_back(from, limit, visit)
    }

    fn write_batch(&mut self, writes: &[Write]) -> Result<()> {
        self.write(|tx| {
            writes.iter().try_for_each(|write| match write {
                Write::Put(key, value) => tx.put(key, value),
                Write::Delete(key) => tx.delete(key),
            })
        })
    }

    fn load_sorted(&mut self, rows: &mut Rows) -> Result<u64> {
        let (mut loaded, mut ingestion) = (0, self.tree().start_ingestion()?);
        while fill(rows, usize::MAX, &mut loaded, |key, value| Ok(ingestion.write(key, value)?))? {}
        ingestion.finish()?;
        Ok(loaded)
    }

    fn transact(&mut self, access: Access, work: &mut Work) -> Result<Attempts> {
        let store = self.0;
        retry(|| match (&store.kind, access) {
            (Kind::Optimistic(_, db), Access::Read) => work(&mut Running { store, tx: db.read_tx() }),
            (Kind::SingleWriter(_, db), Access::Read) => work(&mut Running { store, tx: db.read_tx() }),
            (Kind::Optimistic(_, db), Access::Write) => {
                let mut running = Running { store, tx: db.write_tx()?.durability(BUFFERED) };
                let verdict = work(&mut running)?;
                match verdict {
                    Verdict::Commit => running.tx.commit()?.map_err(|_| Conflict)?,
                    Verdict::RollBack => running.tx.rollback(),
                }
                Ok(verdict)
            }
            (Kind::SingleWriter(_, db), Access::Write) => {
                let mut running = Running { store, tx: db.write_tx().durability(BUFFERED) };
                let verdict = work(&mut running)?;
                match verdict {
                    Verdict::Commit => running.tx.commit()?,
                    Verdict::RollBack => running.tx.rollback(),
                }
                Ok(verdict)
            }
        })
    }

    /// Uses fjall's own function, which has a retry loop of its own.
    fn fetch_update(&mut self, key: &[u8], change: &mut dyn FnMut(&mut Vec<u8>)) -> Result<Attempts> {
        let mut attempts = Attempts { committed: true, ..Attempts::default() };
        let mut next = |found: Option<&fjall::UserValue>| {
            attempts.count += 1;
            let mut value = found.map_or_else(Vec::new, |found| found.to_vec());
            change(&mut value);
            Some(value.into())
        };
        match &self.0.kind {
            Kind::Optimistic(tree, _) => drop(tree.fetch_update(key, next)?),
            Kind::SingleWriter(tree, _) => drop(tree.fetch_update(key, &mut next)?),
        }
        Ok(attempts)
    }
}
