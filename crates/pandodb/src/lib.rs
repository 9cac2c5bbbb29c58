//! PandoDB (work in progress: the face is written last).
#![forbid(unsafe_code)]

pub mod base;
pub mod device;
pub mod resolve;
pub mod space;
pub mod wal;

pub use base::{Error, KeyRange, Result};
