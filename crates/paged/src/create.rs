//! Creates a tree of any kind, and refuses options that do not fit together.

use std::path::Path;

use crate::betree::BeTree;
use crate::btree::BTree;
use crate::buffer::{self, BufferConfig};
use crate::error::{Error, Result};
use crate::layout::{Layout, Sizes};
use crate::tree::{BeOptions, FanOut, FlushPolicy, Tree, TreeKind};

/// Creates an empty tree. The page size of `config` must be that of `sizes`.
///
/// # Errors
/// [`Error::Layout`](crate::Error::Layout), also for [`FanOut::Dynamic`] with another policy than
/// [`FlushPolicy::Largest`], and the errors of creating the file at `path`.
///
/// ```
/// # #[cfg(not(feature = "explore"))] {
/// use pandodb_paged::{BeOptions, BufferConfig, BufferKind, Op, Sizes, TreeKind, create};
///
/// let sizes = Sizes { page: 4096, value: 8, epsilon: 0.5 };
/// let config = BufferConfig { kind: BufferKind::Optimal, page: 4096, frames: 0, direct: false };
/// let tree = create(TreeKind::BeTree(BeOptions::SOURCE), sizes, &config, "".as_ref())?;
/// tree.upsert(7, Op::Insert, &40_u64.to_le_bytes())?;
/// tree.upsert(7, Op::Update, &2_u64.to_le_bytes())?;
/// let mut value = Vec::new();
/// assert!(tree.get(7, &mut value)? && value == 42_u64.to_le_bytes());
/// # }
/// # Ok::<(), pandodb_paged::Error>(())
/// ```
pub fn create(kind: TreeKind, sizes: Sizes, config: &BufferConfig, path: &Path) -> Result<Box<dyn Tree>> {
    let layout = match kind {
        TreeKind::BeTree(BeOptions { fan_out: FanOut::Dynamic { .. }, policy, .. }) => {
            if policy != FlushPolicy::Largest {
                let text = format!("the flush policy {} needs nodes with the same epsilon", policy.name());
                return Err(Error::Layout(text));
            }
            Layout::dynamic(sizes)?
        }
        _ => Layout::new(sizes)?,
    };
    assert_eq!(config.page, sizes.page, "the buffer has the pages of the tree");
    let pages = buffer::create(config, path)?;
    Ok(match kind {
        TreeKind::BTree(coupling) => Box::new(BTree::create(layout, pages, coupling)?),
        TreeKind::BeTree(options) => Box::new(BeTree::create(layout, pages, options)?),
    })
}
