//! The arguments of `pando lab pool`.

use clap::Args;

/// `pando lab pool`
#[derive(Debug, Args)]
pub struct PoolArgs {
    /// The number of rounds; each round measures every pool and store once.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Measure only the stores, not the pools.
    #[arg(long)]
    pub stores: bool,
    /// Measure only the pools, not the stores.
    #[arg(long, conflicts_with = "stores")]
    pub caches: bool,
    /// Print lines of JSON instead of the tables.
    #[arg(long)]
    pub json: bool,
}
