//! The lab: compares PandoDB with other stores, with its sources, and with theory.
//!
//! ```text
//!   workload ──ops──▶ bench ──▶ engine::Engine (pando, or a rival's adapter)
//!                       │
//!                       └── line::Line, one JSON line a workload
//! ```
//!
//! * [`workload`]: YCSB, loads, merges, deletes, queues, each as a deterministic stream of operations for each thread.
//! * [`mod@bench`]: runs workloads and measures rates over time, latencies, amplifications and memory.
//! * [`engine`]: the trait of a store under measurement; [`pando`]: its implementation by PandoDB. Adapters of other
//!   stores are in a crate of their own, which builds C++.
//! * [`mod@line`]: the results of a workload as a line of JSON. [`report`] compares lines in a page, images and tables;
//!   [`plot`] draws.
//! * [`figures`]: figures of the sources, measured again; each claim is compared with a measurement.
//! * [`theory`]: costs compared with the bounds of the sources while N doubles.
//! * [`filters`]: the filters of runs and bundles, each alone and for a node of several runs.
//! * [`pool`]: the buffer pool compared with other designs, and the gain from a second reader thread.
//!
//! It works without other stores. Its command line is `pando bench` and `pando lab`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod bench;
pub mod engine;
pub mod figures;
pub mod filters;
pub mod line;
pub mod pando;
pub mod plot;
pub mod pool;
pub mod record;
pub mod report;
pub mod theory;
pub mod workload;
