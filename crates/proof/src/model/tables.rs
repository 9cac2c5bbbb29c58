//! The model: plain sorted maps, and the effect of each write on them.
//!
//! The model shares no code with the engine. It uses the range search of the standard library and `starts_with` for
//! prefixes, and implements each merge operator again in one line.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// A value.
pub type Bytes = Arc<[u8]>;
/// The content of a keyspace.
pub type Table = BTreeMap<Vec<u8>, Bytes>;
/// The bounds of a range of keys.
pub type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The merge operator of a keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// No operator: the keyspace refuses merges.
    Plain,
    /// Adds signed numbers.
    Counter,
    /// Appends the operand to the value.
    Append,
    /// Keeps the largest operand.
    Max,
}

/// The keyspaces of every history: name, operator, blob threshold in bytes.
pub const SLOTS: [(&str, Rule, usize); 5] = [
    ("plain", Rule::Plain, 2 << 10),
    ("counters", Rule::Counter, 2 << 10),
    ("lists", Rule::Append, 200),
    ("large", Rule::Plain, 64),
    ("highest", Rule::Max, 0),
];

/// The slot of the counters.
pub const COUNTERS: usize = 1;
const _: () = assert!(matches!(SLOTS[COUNTERS].1, Rule::Counter), "every history counts");

/// One write, to the keyspace in a slot.
#[derive(Clone, Debug)]
pub enum Write {
    Put(usize, Vec<u8>, Vec<u8>),
    Delete(usize, Vec<u8>),
    Merge(usize, Vec<u8>, Vec<u8>),
    DeleteRange(usize, Bounds),
    DeletePrefix(usize, Vec<u8>),
    /// A sorted load.
    Load(usize, Vec<(Vec<u8>, Vec<u8>)>),
}

impl Write {
    /// Whether the write certainly appends a log record. A range delete that covers no key may append no record, and
    /// then nothing is written to the log file.
    pub fn is_logged(&self) -> bool {
        match self {
            Write::Put(..) | Write::Delete(..) | Write::Merge(..) => true,
            Write::DeleteRange(..) | Write::DeletePrefix(..) => false,
            Write::Load(_, rows) => !rows.is_empty(),
        }
    }
}

/// The contents of all keyspaces; `None` for a dropped keyspace. A clone is cheap, because a shared table is copied
/// only when it changes.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Model {
    tables: Vec<Option<Arc<Table>>>,
}

impl Model {
    /// A model in which every keyspace exists and is empty.
    pub fn new() -> Model {
        Model { tables: vec![Some(Arc::default()); SLOTS.len()] }
    }

    /// A hash of the contents.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// The content of the keyspace in `slot`, if it exists.
    pub fn table(&self, slot: usize) -> Option<&Arc<Table>> {
        self.tables[slot].as_ref()
    }

    /// Replaces the keyspace in `slot` by an empty keyspace if `there` is set, otherwise removes the keyspace.
    pub fn reset(&mut self, slot: usize, there: bool) {
        self.tables[slot] = there.then(Arc::default);
    }

    /// Replaces the content of the keyspace in `slot`.
    pub fn set(&mut self, slot: usize, table: Table) {
        self.tables[slot] = Some(Arc::new(table));
    }

    /// Applies one write.
    pub fn apply(&mut self, write: &Write) {
        match write {
            Write::Put(slot, key, value) => {
                self.change(*slot).insert(key.clone(), value.as_slice().into());
            }
            Write::Delete(slot, key) => {
                self.change(*slot).remove(key);
            }
            Write::Merge(slot, key, operand) => {
                let table = self.change(*slot);
                let value = fold(SLOTS[*slot].1, table.get(key).map(|value| &**value), operand);
                table.insert(key.clone(), value.into());
            }
            Write::DeleteRange(slot, bounds) => self.change(*slot).retain(|key, _| !bounds.contains(key)),
            Write::Load(slot, rows) => {
                let rows = rows.iter().map(|(key, value)| (key.clone(), value.as_slice().into()));
                self.change(*slot).extend(rows);
            }
            Write::DeletePrefix(slot, prefix) => self.change(*slot).retain(|key, _| !key.starts_with(prefix)),
        }
    }

    fn change(&mut self, slot: usize) -> &mut Table {
        Arc::make_mut(self.tables[slot].as_mut().expect("writes go to keyspaces that are there"))
    }
}

/// The entries of a table within bounds.
pub fn within(table: &Table, bounds: &Bounds) -> Vec<(Vec<u8>, Bytes)> {
    table.iter().filter(|(key, _)| bounds.contains(*key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The bounds of the keys that start with `prefix`.
pub fn prefix_bounds(prefix: &[u8]) -> Bounds {
    let mut end = prefix.to_vec();
    while end.last() == Some(&0xff) {
        end.pop();
    }
    let to = match end.last_mut() {
        Some(last) => {
            *last += 1;
            Bound::Excluded(end)
        }
        None => Bound::Unbounded,
    };
    (Bound::Included(prefix.to_vec()), to)
}

/// The value after a merge.
fn fold(rule: Rule, base: Option<&[u8]>, operand: &[u8]) -> Vec<u8> {
    let number = |bytes: &[u8]| <[u8; 8]>::try_from(bytes).map_or(0, i64::from_le_bytes);
    match rule {
        Rule::Plain => panic!("a keyspace without an operator takes no merges"),
        Rule::Counter => base.map_or(0, number).wrapping_add(number(operand)).to_le_bytes().to_vec(),
        Rule::Append => [base.unwrap_or_default(), operand].concat(),
        Rule::Max => base.map_or(operand, |base| base.max(operand)).to_vec(),
    }
}
