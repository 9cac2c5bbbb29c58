//! The lab: compares PandoDB with other stores, with its sources, and with theory.
//!
//! ```text
//!   workload ──ops──▶ bench ──▶ engine::Engine (pando, or a rival's adapter)
//!                       │
//!                       └── line::Line, one JSON line a workload
//! ```
//!
//! * [`workload`]: YCSB, loads, merges, deletes and queues. Each workload is a deterministic stream of operations for
//!   each thread.
//! * [`mod@bench`]: runs workloads and measures rates over time, latencies, amplifications and memory.
//! * [`engine`]: the trait of a measured store. [`pando`]: the implementation of this trait for PandoDB. Adapters for
//!   other stores are in a separate crate, because they need a C++ build.
//! * [`transactions`]: the interface of an engine's transactions. [`txn`]: the workloads that use it.
//! * [`mod@line`]: the results of a workload as a line of JSON. [`report`] compares lines in a page, images and tables.
//!   [`plot`] draws plots.
//! * [`figures`]: repeats the measurements of figures in the sources, and compares each claim with the result.
//! * [`theory`]: compares costs with the bounds of the sources for repeatedly doubled numbers of records.
//! * [`filters`]: measures the filters of runs and bundles, each alone and in a node of several runs.
//! * [`mod@paged`]: repeats the experiments of 000 on the source's own trees of pages.
//! * [`pool`]: compares the buffer pool with other designs, and measures the gain from a second reader thread.
//!
//! The lab can be used without any other store. Its commands are `pando bench` and `pando lab`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod bench;
pub mod engine;
pub mod failure;
pub mod figures;
pub mod filters;
pub mod line;
pub mod paged;
pub mod pando;
mod pando_transactions;
pub mod plot;
pub mod pool;
pub mod record;
pub mod report;
pub mod theory;
pub mod transactions;
pub mod txn;
pub mod workload;
