//! The commands. Each module contains one command, or a few similar commands.
//!
//! Commands that do not write open the store read-only: they take a shared lock, replay the log in memory and change
//! nothing. `stats`, `keyspaces` and `inspect` also work while a writer has the lock. Commands that write take the
//! writer's lock and close the store before they report.

#[cfg(feature = "lab")]
pub mod bench;
#[cfg(feature = "lab")]
pub mod bench_report;
pub mod completions;
pub mod dump;
pub mod gen_records;
pub mod inspect;
pub mod keyspace;
#[cfg(feature = "lab")]
pub mod lab;
#[cfg(feature = "lab")]
pub mod lab_figure;
#[cfg(feature = "lab")]
pub mod lab_filters;
#[cfg(feature = "lab")]
pub mod lab_paged;
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

use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal, Read},
    path::Path,
    time::{Duration, Instant},
};

use indicatif::ProgressBar;
use pandodb::{
    Keyspace, Store, StoreBuilder,
    check::{self, Glance},
};

use crate::{
    args::{Cli, Command, KeyspaceArgs, StoreArgs},
    demo,
    failure::{Failure, Outcome},
    input::packed,
    output,
};

/// Runs the command.
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
        Command::Keyspace(command) => keyspace::run(&command),
        Command::Completions(args) => completions::run(&args),
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

/// The access that a command needs to its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only read an existing store.
    Read,
    /// Write to an existing store.
    Write,
    /// Write, and create the store if it does not exist.
    Create,
}

/// The builder that opens the store for a command.
///
/// # Errors
/// [`Failure::NotFound`] if the directory does not exist and the command does not create it.
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

/// Opens the store for a command. Prints a note if the replay of the log took long for a command that only reads.
pub fn open(args: &StoreArgs, access: Access) -> Outcome<Store> {
    opened(args, access, builder(args, access)?)
}

fn opened(args: &StoreArgs, access: Access, builder: StoreBuilder) -> Outcome<Store> {
    let begun = Instant::now();
    let store = builder.open()?;
    if access == Access::Read
        && let Some(note) = slow_opening(begun.elapsed(), store.stats()?.log_bytes, &args.store)
    {
        eprintln!("{note}");
    }
    Ok(store)
}

/// The note about a slow replay of the log. Commands that only read replay the log each time, because they cannot write
/// its contents to the data file.
fn slow_opening(took: Duration, log_bytes: u64, store: &Path) -> Option<String> {
    const LONG: Duration = Duration::from_secs(1);
    const MUCH: u64 = 1 << 20;
    let is_told = took >= LONG && log_bytes >= MUCH;
    is_told.then(|| {
        format!(
            "pando: opening took {:.1} s, to replay {} of log; run `pando checkpoint {}` once to avoid this",
            took.as_secs_f64(),
            output::bytes(log_bytes),
            store.display(),
        )
    })
}

/// Opens the store and returns the result of `full`. If another process has the store open for writing, instead reads
/// the last checkpoint and returns the result of `glanced`.
pub fn open_or_glance<T>(
    args: &StoreArgs,
    full: impl FnOnce(&Store) -> Outcome<T>,
    glanced: impl FnOnce(Glance) -> T,
) -> Outcome<T> {
    let builder = builder(args, Access::Read)?;
    match opened(args, Access::Read, builder) {
        Ok(store) => full(&store),
        Err(Failure::InUse(_)) => Ok(glanced(check::glance(&args.store)?)),
        Err(other) => Err(other),
    }
}

/// Opens the store read-only, and one keyspace of it.
pub fn open_to_read(args: &KeyspaceArgs) -> Outcome<(Store, Keyspace)> {
    let store = open(&args.store, Access::Read)?;
    let keyspace = existing(&store, &args.keyspace)?;
    Ok((store, keyspace))
}

/// Opens the keyspace `name`, which must exist.
pub fn existing(store: &Store, name: &str) -> Outcome<Keyspace> {
    let missing =
        || Failure::NotFound(format!("there is no keyspace `{name}`; list the keyspaces with `pando keyspaces STORE`"));
    store.open_keyspace(name)?.ok_or_else(missing)
}

/// Checks that `there` contains all `wanted` keyspaces.
pub fn require_keyspaces<'n>(wanted: &[String], there: impl Iterator<Item = &'n str> + Clone, place: &str) -> Outcome {
    match wanted.iter().find(|name| !there.clone().any(|is| is == **name)) {
        None => Ok(()),
        Some(name) => {
            let list = there.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            let list = if list.is_empty() { "none".into() } else { list };
            Err(Failure::NotFound(format!("there is no keyspace `{name}` in {place}; its keyspaces: {list}")))
        }
    }
}

/// Opens a file, or stdin for `-`, with a progress bar. gzip and zstd input is decompressed.
pub fn open_input(path: &Path, what: &str) -> Outcome<(Box<dyn BufRead>, ProgressBar)> {
    const BUFFER_BYTES: usize = 256 << 10;
    let failed = |e: io::Error| Failure::io(format_args!("opening `{}`", path.display()), &e);
    let (input, bar): (Box<dyn Read>, ProgressBar) = if path == Path::new("-") {
        if io::stdin().is_terminal() {
            eprintln!("pando: reading {what} from the terminal; end with Ctrl-D");
        }
        let bar = output::byte_bar(None);
        (Box::new(bar.wrap_read(io::stdin())), bar)
    } else {
        let file = File::open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if meta.is_dir() {
            return Err(Failure::Misuse(format!("`{}` is a directory; name a file or - for stdin", path.display())));
        }
        let bar = output::byte_bar(meta.is_file().then_some(meta.len()));
        (Box::new(bar.wrap_read(file)), bar)
    };
    let input = BufReader::with_capacity(BUFFER_BYTES, input);
    Ok((packed::open(input, BUFFER_BYTES).map_err(failed)?, bar))
}

fn require(store: &Path) -> Outcome {
    if store.exists() {
        return Ok(());
    }
    let path = store.display();
    Err(Failure::NotFound(format!("there is no store at `{path}`; `pando put` or `pando load` creates one")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_opening_is_reported_if_the_log_is_the_reason() {
        let note = |ms, bytes| slow_opening(Duration::from_millis(ms), bytes, Path::new("s"));
        assert_eq!((note(999, 64 << 20), note(5_000, 1 << 10)), (None, None));
        let said = note(1_400, 14_365_491).unwrap();
        assert_eq!(
            said,
            "pando: opening took 1.4 s, to replay 13.7 MiB of log; run `pando checkpoint s` once to avoid this"
        );
    }
}
