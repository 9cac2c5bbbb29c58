//! Looking at a store without changing it: verification of an open one, inspection of one on disk, a glance at one that another
//! process has open, salvage of a damaged one.

mod glance;
mod inspect;
mod salvage;
mod verify;

pub use glance::{Glance, GlancedKeyspace, glance, glance_device};
pub use inspect::{Inspect, inspect, inspect_device};
pub use salvage::{Loss, SalvageReport, Salvaged, salvage};
pub use verify::VerifyReport;
pub(crate) use verify::verify;
