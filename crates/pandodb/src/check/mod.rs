//! Reading a store without changing it: verification of an open store, inspection of the files of a store, a glance at
//! a store that another process has open, and salvage of a damaged store.

mod glance;
mod inspect;
mod salvage;
mod verify;

pub use glance::{Glance, GlancedKeyspace, glance, glance_device};
pub use inspect::{Inspect, inspect, inspect_device};
pub use salvage::{Loss, SalvageReport, Salvaged, salvage};
pub use verify::VerifyReport;
pub(crate) use verify::verify;
