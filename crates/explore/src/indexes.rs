//! Draws the index of the stores of a batch from the seed of the batch.
//!
//! All explored threads of a batch run on one system thread. So the choice is stored in a thread-local variable.

use std::cell::Cell;

use pandodb::{IndexKind, IndexOptions, Values};

/// The option of an index for the way in which commits write.
const WRITES: &str = "writes";
/// The value of [`WRITES`] with which commits write to the tree.
const DIRECT: &str = "direct";
/// What the name of an index ends with if its commits write directly.
const SUFFIX: &str = "-direct";

thread_local! {
    static CURRENT: Cell<Variant> = Cell::new(Variant::default());
}

/// An index type, and the way in which commits write to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Variant {
    kind: IndexKind,
    is_direct: bool,
}

impl Variant {
    /// The index type with this name, with direct writes.
    pub fn direct(name: &str) -> Variant {
        let kind = IndexKind::named(name).expect("an index type");
        assert!(has_direct(kind), "the index `{kind}` has no direct writes");
        Variant { kind, is_direct: true }
    }

    /// The variant with the name that [`Variant`] prints.
    ///
    /// # Errors
    /// A message for the user, if no index has this name.
    pub fn named(name: &str) -> Result<Variant, String> {
        let plain = name.strip_suffix(SUFFIX);
        let kind = IndexKind::named(plain.unwrap_or(name)).map_err(|e| e.to_string())?;
        match plain {
            Some(_) if !has_direct(kind) => Err(format!("the index `{kind}` has no direct writes")),
            _ => Ok(Variant { kind, is_direct: plain.is_some() }),
        }
    }
}

impl std::fmt::Display for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.kind, if self.is_direct { SUFFIX } else { "" })
    }
}

fn has_direct(kind: IndexKind) -> bool {
    kind.options().iter().any(|spec| spec.name == WRITES)
}

/// The index of the batch that has this seed. A quarter of the batches write directly.
pub fn of(seed: u64) -> Variant {
    let scattered = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let is_direct = (scattered >> 16).is_multiple_of(4);
    let kinds: Vec<IndexKind> = IndexKind::all().filter(|kind| !is_direct || has_direct(*kind)).collect();
    Variant { kind: kinds[scattered as usize % kinds.len()], is_direct }
}

/// Runs `work`. The stores that `work` creates use this index.
pub fn with<T>(variant: Variant, work: impl FnOnce() -> T) -> T {
    let before = CURRENT.replace(variant);
    let made = work();
    CURRENT.set(before);
    made
}

/// The index of the stores of this batch.
pub fn current() -> Variant {
    CURRENT.get()
}

/// The index of this batch, with the minimum value of each numeric option.
pub fn options() -> IndexOptions {
    let Variant { kind, is_direct } = current();
    kind.options().iter().fold(IndexOptions::from(kind), |options, spec| match spec.values {
        Values::Range(least, _) => options.with(spec.name, &least.to_string()).expect("the least value"),
        Values::Words(_) if is_direct && spec.name == WRITES => options.with(WRITES, DIRECT).expect("a value"),
        Values::Words(_) => options,
    })
}
