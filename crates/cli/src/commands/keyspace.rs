//! `keyspace create`, `keyspace alter` and `keyspace drop`.

use pandodb::{IndexOptions, KeyspaceOptions};

use super::{Access, existing, open};
use crate::{
    args::{KeyspaceAlterArgs, KeyspaceCommand, KeyspaceCreateArgs, KeyspaceDropArgs},
    failure::{Failure, Outcome},
};

/// Runs a subcommand.
pub fn run(command: &KeyspaceCommand) -> Outcome {
    match command {
        KeyspaceCommand::Create(args) => create(args),
        KeyspaceCommand::Alter(args) => alter(args),
        KeyspaceCommand::Drop(args) => drop_it(args),
    }
}

/// Creates a keyspace. If a keyspace of this name exists, this is misuse, because that keyspace may have another
/// operator or contain data.
fn create(args: &KeyspaceCreateArgs) -> Outcome {
    let mut options = KeyspaceOptions::new();
    if let Some(index) = &args.index {
        options = options.index(index.clone());
    }
    if let Some(operator) = &args.merge {
        options = options.merge_named(operator)?;
    }
    let (store, name) = (open(&args.store, Access::Create)?, &args.name);
    if let Some(there) = store.open_keyspace(name)? {
        let operator = there.operator().map_or("no merge operator".into(), |name| format!("operator {name}"));
        return Err(Failure::Misuse(format!(
            "keyspace `{name}` exists already, with {operator}; use it, or drop it first with `pando keyspace drop`"
        )));
    }
    store.keyspace_with(name, options)?;
    Ok(store.close()?)
}

/// Changes options of a keyspace's index.
fn alter(args: &KeyspaceAlterArgs) -> Outcome {
    let store = open(&args.store, Access::Write)?;
    drop(existing(&store, &args.name)?);
    let info = store.keyspaces().into_iter().find(|info| info.name == args.name);
    let mut changes = IndexOptions::from(info.map_or_else(Default::default, |info| info.index.kind()));
    for option in &args.options {
        let (name, value) = option.split_once('=').ok_or_else(|| {
            Failure::Misuse(format!("`{option}` is not an option; write name=value, as in compression=lz4"))
        })?;
        changes = changes.with(name, value)?;
    }
    store.alter_keyspace(&args.name, changes)?;
    Ok(store.close()?)
}

/// Drops a keyspace and waits until its space is free.
fn drop_it(args: &KeyspaceDropArgs) -> Outcome {
    let store = open(&args.store, Access::Write)?;
    drop(existing(&store, &args.name)?);
    store.drop_keyspace(&args.name)?;
    store.settle()?;
    Ok(store.close()?)
}
