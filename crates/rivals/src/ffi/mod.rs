//! Bindings of C libraries for which there is no crate that is small enough. Each module declares only the functions
//! that the adapters call, owns the handles that it opens, and exposes no pointers. Nearly all `unsafe` code of this
//! crate is here.

#[cfg(feature = "leveldb")]
pub mod leveldb;
#[cfg(feature = "wiredtiger")]
pub mod wiredtiger;
