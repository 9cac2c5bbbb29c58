//! `btree`: a B+-tree. It is the yardstick for the other indexes, and the right index for data that is mostly read
//! (sources: 000 §5.2 and §6.1, the baseline; 002 ch. 5, the insertion buffer in front of it). It is a [`super::tree`]
//! whose inner pages have no buffers.

mod options;

pub use self::options::{BtreeOptions, TYPE};
