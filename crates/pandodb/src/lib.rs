//! PandoDB (work in progress: the face is written last).
#![forbid(unsafe_code)]

pub mod base;
pub mod device;
pub mod filter;
pub mod memtable;
pub mod pool;
pub mod resolve;
pub mod run;
pub mod space;
pub mod wal;

pub use base::{Error, KeyRange, Result};
