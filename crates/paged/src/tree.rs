//! What both trees offer, and their options.

use crate::buffer::PageBuffer;
use crate::error::Result;
use crate::layout::Layout;
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

    /// Counts of flushes and splits since the creation. They stay 0 in a B+-tree.
    fn flushes(&self) -> FlushCounts {
        FlushCounts::default()
    }

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

/// What a Bε-tree has flushed and split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushCounts {
    /// Batches that a node has passed on to a child.
    pub batches: u64,
    /// Messages in these batches.
    pub messages: u64,
    /// Levels to whose nodes a flush has passed on batches, over all flushes. `batches ÷ levels` pages of one level could
    /// be changed at the same time, on average.
    pub levels: u64,
    /// Splits of inner nodes.
    pub node_splits: u64,
    /// The splits among them that were made instead of a flush ([`FlushPolicy::Threshold`]).
    pub splits_instead: u64,
    /// Splits of leaves by a flush.
    pub leaf_splits: u64,
    /// Nodes that got another ε ([`FanOut::Dynamic`]).
    pub moves: u64,
}

impl FlushCounts {
    /// What was done since `before`.
    #[must_use]
    pub fn since(&self, before: &FlushCounts) -> FlushCounts {
        FlushCounts {
            batches: self.batches - before.batches,
            messages: self.messages - before.messages,
            levels: self.levels - before.levels,
            node_splits: self.node_splits - before.node_splits,
            splits_instead: self.splits_instead - before.splits_instead,
            leaf_splits: self.leaf_splits - before.leaf_splits,
            moves: self.moves - before.moves,
        }
    }
}

/// Which messages leave a full buffer of a Bε-tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushPolicy {
    /// Those for the children with the most messages, until the rest fits (000 §5.2.3).
    #[default]
    Largest,
    /// The same, but a node is split instead if a batch has at most (messages) ÷ (most children of a node) messages
    /// (004 §3).
    Threshold,
    /// Each child has (slots) ÷ (most children of a node) slots, at least one. When a child needs more, as many of its
    /// messages are passed on (004 §2.4.1).
    Reserved,
}

impl FlushPolicy {
    /// All policies.
    pub const ALL: [FlushPolicy; 3] = [FlushPolicy::Largest, FlushPolicy::Threshold, FlushPolicy::Reserved];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            FlushPolicy::Largest => "largest",
            FlushPolicy::Threshold => "threshold",
            FlushPolicy::Reserved => "reserved",
        }
    }
}

/// The root of a Bε-tree (000 §5.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RootKind {
    /// A node without a buffer, which writers share.
    #[default]
    Separate,
    /// A node with a buffer like all others, which each writer latches exclusively.
    Textbook,
}

/// How a descending thread protects itself against changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coupling {
    /// It latches a child before it releases the parent, as in the source.
    #[default]
    Latched,
    /// It releases the parent first, and restarts if the parent's version has changed when the child is latched
    /// (000 §8.1).
    Optimistic,
}

/// The number of children of the nodes of a Bε-tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FanOut {
    /// All nodes have the ε of [`Sizes`](crate::Sizes).
    #[default]
    Fixed,
    /// New nodes have this ε. Later each node chooses its own by its reads and writes (000 §8.2).
    Dynamic {
        /// The least number of children that a node chooses to have room for. With few children there are many nodes: one
        /// for every `children − 1` pages below it.
        least: usize,
    },
}

/// Where a node keeps the messages of single upserts (000 §8.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Buffers {
    /// In the bytes of its page, under the latch of the page, as in the source.
    #[default]
    Inside,
    /// The newest messages are in a sorted set beside the page. This set has a lock of its own, so that writers share
    /// the latch of the page.
    Apart,
}

/// The choices of a Bε-tree. The default is the tree of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BeOptions {
    /// How threads descend.
    pub coupling: Coupling,
    /// The kind of the root.
    pub root: RootKind,
    /// Which messages leave a full buffer.
    pub policy: FlushPolicy,
    /// Whether the fan-out of a node is fixed.
    pub fan_out: FanOut,
    /// Where new messages are.
    pub buffers: Buffers,
}

impl BeOptions {
    /// The tree of the source.
    pub const SOURCE: BeOptions = BeOptions {
        coupling: Coupling::Latched,
        root: RootKind::Separate,
        policy: FlushPolicy::Largest,
        fan_out: FanOut::Fixed,
        buffers: Buffers::Inside,
    };
}

/// A tree to create.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TreeKind {
    /// A B+-tree.
    BTree(Coupling),
    /// A Bε-tree.
    BeTree(BeOptions),
}

impl TreeKind {
    /// The name in tables, without the flush policy.
    pub fn name(self) -> String {
        let mut name = String::new();
        let mut buffers = Buffers::Inside;
        let coupling = match self {
            TreeKind::BTree(coupling) => {
                name.push_str("btree");
                coupling
            }
            TreeKind::BeTree(options) => {
                name.push_str("betree");
                if options.root == RootKind::Textbook {
                    name.push_str(", textbook root");
                }
                if options.fan_out != FanOut::Fixed {
                    name.push_str(", dynamic ε");
                }
                buffers = options.buffers;
                options.coupling
            }
        };
        if coupling == Coupling::Optimistic {
            name.push_str(", optimistic");
        }
        if buffers == Buffers::Apart {
            name.push_str(", buffer apart");
        }
        name
    }

    /// The flush policy of a Bε-tree.
    pub fn flush_policy(self) -> Option<FlushPolicy> {
        match self {
            TreeKind::BTree(_) => None,
            TreeKind::BeTree(options) => Some(options.policy),
        }
    }
}
