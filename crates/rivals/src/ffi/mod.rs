//! The C libraries that have no bindings worth their size: each module says only what the adapters call, owns what it
//! opens, and keeps every pointer to itself. Nearly all `unsafe` of this crate is here.

#[cfg(feature = "leveldb")]
pub mod leveldb;
#[cfg(feature = "wiredtiger")]
pub mod wiredtiger;
