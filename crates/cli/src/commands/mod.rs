//! One module a command, or a few that are alike.
//!
//! Commands that only read open the store read-only: a shared lock, the log replayed in memory, nothing changed.
//! Commands that write take the writer's lock and close the store before they report.

#[cfg(feature = "lab")]
pub mod bench;
#[cfg(feature = "lab")]
pub mod bench_report;
pub mod dump;
pub mod gen_records;
pub mod inspect;
#[cfg(feature = "lab")]
pub mod lab;
#[cfg(feature = "lab")]
pub mod lab_figure;
#[cfg(feature = "lab")]
pub mod lab_filters;
#[cfg(feature = "lab")]
pub mod lab_pool;
#[cfg(feature = "lab")]
pub mod lab_theory;
pub mod load;
pub mod maintain;
pub mod point;
pub mod restore;
pub mod salvage;
pub mod scan;
pub mod sim;
pub mod stats;

use std::path::Path;

use pandodb::{Keyspace, Store, StoreBuilder};

use crate::{
    args::{Cli, Command, KeyspaceArgs, StoreArgs},
    demo,
    failure::{Failure, Outcome},
};

/// Does what was asked for.
pub fn run(cli: Cli) -> Outcome {
    match cli.command {
        Command::Demo(args) => demo::run(&args),
        Command::DemoChild(args) => demo::child::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Get(args) => point::get(&args),
        Command::Put(args) => point::put(&args),
        Command::Delete(args) => point::delete(&args),
        Command::Merge(args) => point::merge(args),
        Command::Scan(args) => scan::scan(&args),
        Command::Count(args) => scan::count(&args),
        Command::Keyspaces(args) => stats::keyspaces(&args),
        Command::Stats(args) => stats::stats(&args),
        Command::Verify(args) => maintain::verify(&args),
        Command::Compact(args) => maintain::compact(&args),
        Command::Checkpoint(args) => maintain::checkpoint(&args),
        Command::Backup(args) => maintain::backup(&args),
        Command::Salvage(args) => salvage::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Restore(args) => restore::run(&args),
        #[cfg(feature = "lab")]
        Command::Bench(args) => bench::run(&args),
        #[cfg(feature = "lab")]
        Command::Lab(args) => lab::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::SimChild(args) => sim::child(&args),
        Command::Gen(args) => gen_records::run(&args),
    }
}

/// What a command does with its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it.
    Read,
    /// Write to one that is there.
    Write,
    /// Write, and make it if it is not there.
    Create,
}

/// How to open the store for a command.
///
/// # Errors
/// [`Failure::NotFound`] if there is no such directory and the command does not make one.
pub fn builder(args: &StoreArgs, access: Access) -> Outcome<StoreBuilder> {
    if access != Access::Create {
        require(&args.store)?;
    }
    let builder = Store::builder(&args.store).create(access == Access::Create).read_only(access == Access::Read);
    Ok(match args.memory_budget {
        Some(budget) => builder.memory_budget(budget),
        None => builder,
    })
}

/// Opens the store for a command.
pub fn open(args: &StoreArgs, access: Access) -> Outcome<Store> {
    Ok(builder(args, access)?.open()?)
}

/// Opens the store to read one keyspace of it.
pub fn open_to_read(args: &KeyspaceArgs) -> Outcome<(Store, Keyspace)> {
    let store = open(&args.store, Access::Read)?;
    let keyspace = existing(&store, &args.keyspace)?;
    Ok((store, keyspace))
}

/// The keyspace `name`, which must be there.
pub fn existing(store: &Store, name: &str) -> Outcome<Keyspace> {
    let missing = || Failure::NotFound(format!("there is no keyspace `{name}`; list them with `pando keyspaces`"));
    store.open_keyspace(name)?.ok_or_else(missing)
}

fn require(store: &Path) -> Outcome {
    if store.exists() {
        return Ok(());
    }
    let path = store.display();
    Err(Failure::NotFound(format!("there is no store at `{path}`; `pando load` or `pando put` makes one")))
}
