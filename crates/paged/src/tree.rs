//! What both trees offer, and how they are created.

use std::path::Path;

use crate::betree::BeTree;
use crate::btree::BTree;
use crate::buffer::{self, BufferConfig, PageBuffer};
use crate::error::Result;
use crate::layout::{Layout, Sizes};
use crate::message::Op;

/// An ordered map from numbers to values of fixed size, in pages.
pub trait Tree: Send + Sync + std::fmt::Debug {
    /// Applies an operation to `key`. A write does not tell whether there was a value (000 §3.2).
    ///
    /// # Errors
    /// The errors of the page buffer.
    ///
    /// # Panics
    /// If the value does not have the tree's size of values.
    fn upsert(&self, key: u64, op: Op, value: &[u8]) -> Result<()>;

    /// Copies the value of `key` to `out`. Returns whether there is one.
    ///
    /// # Errors
    /// The errors of the page buffer.
    fn get(&self, key: u64, out: &mut Vec<u8>) -> Result<bool>;

    /// Passes up to `limit` rows with keys from `from` on to `row`, in ascending order. Returns the number of rows. The
    /// rows of one leaf are of one moment, those of several leaves are not.
    ///
    /// # Errors
    /// The errors of the page buffer.
    fn range(&self, from: u64, limit: usize, row: &mut dyn FnMut(u64, &[u8])) -> Result<usize>;

    /// Checks every rule of the structure. No other thread may use the tree meanwhile.
    ///
    /// # Errors
    /// [`Error::Broken`](crate::Error::Broken) and the errors of the page buffer.
    fn verify(&self) -> Result<Shape>;

    /// The page buffer.
    fn pages(&self) -> &dyn PageBuffer;

    /// The numbers of slots.
    fn layout(&self) -> &Layout;
}

/// The shape of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Levels of nodes, with the leaves.
    pub height: usize,
    /// Leaves.
    pub leaves: u64,
    /// Other nodes.
    pub inner: u64,
    /// Records in leaves.
    pub records: u64,
    /// Messages in buffers.
    pub messages: u64,
}

/// The root of a Bε-tree (000 §5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootKind {
    /// A node without a buffer, which writers share.
    Separate,
    /// A node with a buffer like all others, which each writer latches exclusively.
    Textbook,
}

/// How a descending thread protects itself against changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coupling {
    /// It latches a child before it releases the parent, as in the source.
    Latched,
    /// It releases the parent first, and restarts if the parent's version has changed when the child is latched
    /// (000 §8.1).
    Optimistic,
}

/// A tree to create.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TreeKind {
    /// A B+-tree.
    BTree(Coupling),
    /// A Bε-tree.
    BeTree(Coupling, RootKind),
}

impl TreeKind {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            TreeKind::BTree(Coupling::Latched) => "btree",
            TreeKind::BTree(Coupling::Optimistic) => "btree, optimistic",
            TreeKind::BeTree(Coupling::Latched, RootKind::Separate) => "betree",
            TreeKind::BeTree(Coupling::Optimistic, RootKind::Separate) => "betree, optimistic",
            TreeKind::BeTree(Coupling::Latched, RootKind::Textbook) => "betree, textbook root",
            TreeKind::BeTree(Coupling::Optimistic, RootKind::Textbook) => "betree, textbook root, optimistic",
        }
    }
}

/// Creates an empty tree. The page size of `config` must be that of `sizes`.
///
/// # Errors
/// [`Error::Layout`](crate::Error::Layout), and the errors of creating the file at `path`.
///
/// ```
/// # #[cfg(not(feature = "explore"))] {
/// use pandodb_paged::{BufferConfig, BufferKind, Coupling, Op, RootKind, Sizes, TreeKind, create};
///
/// let sizes = Sizes { page: 4096, value: 8, epsilon: 0.5 };
/// let config = BufferConfig { kind: BufferKind::Optimal, page: 4096, frames: 0, direct: false };
/// let tree = create(TreeKind::BeTree(Coupling::Latched, RootKind::Separate), sizes, &config, "".as_ref())?;
/// tree.upsert(7, Op::Insert, &40_u64.to_le_bytes())?;
/// tree.upsert(7, Op::Update, &2_u64.to_le_bytes())?;
/// let mut value = Vec::new();
/// assert!(tree.get(7, &mut value)? && value == 42_u64.to_le_bytes());
/// # }
/// # Ok::<(), pandodb_paged::Error>(())
/// ```
pub fn create(kind: TreeKind, sizes: Sizes, config: &BufferConfig, path: &Path) -> Result<Box<dyn Tree>> {
    let layout = Layout::new(sizes)?;
    assert_eq!(config.page, sizes.page, "the buffer has the pages of the tree");
    let pages = buffer::create(config, path)?;
    Ok(match kind {
        TreeKind::BTree(coupling) => Box::new(BTree::create(layout, pages, coupling)?),
        TreeKind::BeTree(coupling, root) => Box::new(BeTree::create(layout, pages, coupling, root)?),
    })
}
