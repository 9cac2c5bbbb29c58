//! Looking at a store without changing it: verification of an open one, inspection of one on disk.

mod inspect;
mod verify;

pub use inspect::{Inspect, inspect, inspect_device};
pub use verify::VerifyReport;
pub(crate) use verify::verify;
