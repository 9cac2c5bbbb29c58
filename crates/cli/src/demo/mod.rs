//! Demo.
use crate::{args::{DemoArgs}, failure::Outcome};
/// x
pub fn run(_: &DemoArgs) -> Outcome { Ok(()) }
/// x
pub mod child {
 use crate::{args::DemoChildArgs, failure::Outcome};
 /// x
 pub fn run(_:&DemoChildArgs)->Outcome{Ok(())} }
