//! Updates of single keys: [`Keyspace::fetch_update`] and its relatives.
//!
//! ```text
//!   turn in the queue of the key ─▶ read point ─▶ get ─▶ closure ─▶ one operation, validated ─▶ committed
//!        ▲                                                               │ another commit has changed the key
//!        └───────────────────────────────────────────────────────────────┘
//! ```
//!
//! An update is a transaction with one read and one write. It needs no [`Transaction`](super::Transaction), so it costs
//! little more than a `get` and a `put`.

#[cfg(doc)]
use crate::Error;
use crate::base::{Result, SeededBug};
use crate::index::Changes;
use crate::store::footprints::FootprintGuard;
use crate::store::keyspace::Keyspace;
use crate::store::options::Durability;
use crate::store::queues::QueueNumber;
use crate::store::read::{self, ReadPoint};
use crate::store::validation::{ReadFrom, ReadSet, Validation};
use crate::store::value::Value;

/// The answer of [`Keyspace::compare_and_swap`] if the value of the key was not the expected one. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The value of the key; `None` if it has none.
    pub current: Option<Value>,
}

/// What an update does to its key.
enum Change {
    Nothing,
    Put(Vec<u8>),
    Delete,
}

impl Change {
    /// Puts a value, or deletes the key if there is none and the key exists.
    fn to(value: Option<impl AsRef<[u8]>>, exists: bool) -> Change {
        match value {
            Some(value) => Change::Put(value.as_ref().to_vec()),
            None if exists => Change::Delete,
            None => Change::Nothing,
        }
    }
}

impl Keyspace {
    /// Reads a key with `look`, and changes it as `decide` says. Repeats both if another commit changes the key in
    /// between.
    fn update<T, R>(
        &self,
        key: &[u8],
        durability: Durability,
        look: impl Fn(ReadPoint<'_>) -> Result<T>,
        mut decide: impl FnMut(T) -> (Change, R),
    ) -> Result<R> {
        let (engine, state) = (&self.engine, &self.state);
        engine.check_writable()?;
        let (mut attempts, mut buf, mut reads) = (0, Vec::new(), ReadSet::default());
        let mut turn = None;
        let _guard = FootprintGuard::of(&engine.writer.footprints);
        loop {
            attempts += 1;
            turn = turn.or_else(|| engine.queues.wait(QueueNumber::of(&state.name, key), attempts));
            let point = ReadFrom::newest(engine);
            let (change, result) = decide(look(ReadPoint::At(&point.snapshot))?);
            if reads.is_empty() {
                let stored = state.codec.stored(key, &mut buf);
                reads.add_key(state, state.codec.hashed(stored), Changes::All);
            }
            let validation = Validation::new(&reads, &point);
            let validation = Some(&validation).filter(|_| !SeededBug::UpdateUnvalidated.is_on());
            let written = match change {
                Change::Nothing => return Ok(result),
                Change::Put(value) => self.put_validated(key, &value, durability, validation),
                Change::Delete => self.delete_validated(key, durability, validation),
            };
            engine.figures.transactions.count(&written);
            match written {
                Ok(()) => return Ok(result),
                Err(error) => engine.after_conflict(error, attempts).map(drop)?,
            }
        }
    }

    /// Reads the value of a key, and changes it.
    fn update_value<R>(
        &self,
        key: &[u8],
        durability: Durability,
        decide: impl FnMut(Option<Value>) -> (Change, R),
    ) -> Result<R> {
        self.update(key, durability, |point| read::get(&self.engine, &self.state, key, point), decide)
    }
}

/// # Updates that depend on the old value
///
/// Such an update reads the old value and writes the new one without another write to the key in between. If there is
/// one, the update does not take effect but reads again, at most 32 times; then it fails with [`Error::Conflict`]. Each
/// method has a form with a durability. A closure may run several times. It must not update the same key: that call
/// would wait for this one until its time limit and then change the key, so this update would fail each time, and the
/// inner one would take effect up to 32 times. If the closure returns the old value, it is still written.
///
/// If only the sum, the maximum or another merge of the new values matters, [`Keyspace::merge`] is faster, because it
/// reads nothing. To update several keys together, use [`Store::transact`](crate::Store::transact).
impl Keyspace {
    /// Replaces the value of a key by the result of `f`, which gets the old value. If `f` returns `None`, the key is
    /// removed. Returns the old value.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// # let ks = pandodb::Store::open(dir.path().join("s"))?.keyspace("k")?;
    /// let next = |old: Option<&[u8]>| Some(old.map_or(0, |old| old[0]) + 1).map(|n| [n]);
    /// assert!(ks.fetch_update("id", next)?.is_none());
    /// assert_eq!(ks.fetch_update("id", next)?.unwrap(), [1]);
    /// assert_eq!(ks.get("id")?.unwrap(), [2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`] and [`Keyspace::put`]; [`Error::Conflict`].
    pub fn fetch_update<V: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        f: impl FnMut(Option<&[u8]>) -> Option<V>,
    ) -> Result<Option<Value>> {
        self.fetch_update_with(key, self.engine.config.durability, f)
    }

    /// Like [`Keyspace::fetch_update`], with the given durability.
    ///
    /// # Errors
    /// The errors of [`Keyspace::fetch_update`].
    pub fn fetch_update_with<V: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        durability: Durability,
        mut f: impl FnMut(Option<&[u8]>) -> Option<V>,
    ) -> Result<Option<Value>> {
        self.update_value(key.as_ref(), durability, |old| {
            let new = f(old.as_deref());
            (Change::to(new, old.is_some()), old)
        })
    }

    /// Replaces the value of a key like [`Keyspace::fetch_update`], but returns the new value.
    ///
    /// # Errors
    /// The errors of [`Keyspace::fetch_update`].
    pub fn update_fetch<V: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        f: impl FnMut(Option<&[u8]>) -> Option<V>,
    ) -> Result<Option<Value>> {
        self.update_fetch_with(key, self.engine.config.durability, f)
    }

    /// Like [`Keyspace::update_fetch`], with the given durability.
    ///
    /// # Errors
    /// The errors of [`Keyspace::fetch_update`].
    pub fn update_fetch_with<V: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        durability: Durability,
        mut f: impl FnMut(Option<&[u8]>) -> Option<V>,
    ) -> Result<Option<Value>> {
        self.update_value(key.as_ref(), durability, |old| {
            let new = f(old.as_deref());
            let value = new.as_ref().map(|new| Value::owned(new.as_ref().to_vec()));
            (Change::to(new, old.is_some()), value)
        })
    }

    /// Replaces the value of a key by `new`, if it is `expected`. `None` stands for no value.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// # let ks = pandodb::Store::open(dir.path().join("s"))?.keyspace("k")?;
    /// ks.compare_and_swap("lock", None, Some(b"me"))?.expect("the lock is free");
    /// let mismatch = ks.compare_and_swap("lock", None, Some(b"you"))?.unwrap_err();
    /// assert_eq!(mismatch.current.unwrap(), "me");
    /// ks.compare_and_swap("lock", Some(b"me"), None)?.expect("I hold the lock");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::fetch_update`]. A mismatch is the inner result.
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Result<(), Mismatch>> {
        self.compare_and_swap_with(key, expected, new, self.engine.config.durability)
    }

    /// Like [`Keyspace::compare_and_swap`], with the given durability.
    ///
    /// # Errors
    /// The errors of [`Keyspace::compare_and_swap`].
    pub fn compare_and_swap_with(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        durability: Durability,
    ) -> Result<Result<(), Mismatch>> {
        self.update_value(key.as_ref(), durability, |current| {
            if current.as_deref() != expected {
                return (Change::Nothing, Err(Mismatch { current }));
            }
            (Change::to(new, current.is_some()), Ok(()))
        })
    }

    /// Removes a key, and returns its value.
    ///
    /// # Errors
    /// The errors of [`Keyspace::fetch_update`].
    pub fn take(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.take_with(key, self.engine.config.durability)
    }

    /// Like [`Keyspace::take`], with the given durability.
    ///
    /// # Errors
    /// The errors of [`Keyspace::fetch_update`].
    pub fn take_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<Option<Value>> {
        self.update_value(key.as_ref(), durability, |old| (Change::to(None::<&[u8]>, old.is_some()), old))
    }

    /// Sets the value of a key that has none. Returns whether it did so; a key that has a value keeps it.
    ///
    /// # Errors
    /// The errors of [`Keyspace::fetch_update`].
    pub fn insert_new(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        self.insert_new_with(key, value, self.engine.config.durability)
    }

    /// Like [`Keyspace::insert_new`], with the given durability.
    ///
    /// # Errors
    /// The errors of [`Keyspace::fetch_update`].
    pub fn insert_new_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<bool> {
        let key = key.as_ref();
        let look = |point: ReadPoint<'_>| read::contains(&self.engine, &self.state, key, point);
        self.update(key, durability, look, |exists| {
            (if exists { Change::Nothing } else { Change::Put(value.as_ref().to_vec()) }, !exists)
        })
    }
}
