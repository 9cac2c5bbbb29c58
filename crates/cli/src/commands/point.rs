//! `get`, `put`, `delete`, `merge`: one key at a time.

use pandodb::{Batch, Keyspace, KeyspaceOptions, Store};

use super::{Access, existing, open, open_to_read};
use crate::{
    args::{DeleteArgs, DurabilityName, GetArgs, KeyspaceArgs, MergeArgs, PutArgs},
    failure::{Failure, Outcome},
    kv,
    operand::OperandForm,
    output,
};

/// Prints a key's value. Exit code 1 if it has none.
pub fn get(args: &GetArgs) -> Outcome {
    let (store, keyspace) = open_to_read(&args.at)?;
    let Some(value) = keyspace.get(&args.key)? else {
        let (key, name) = (kv::escaped(&args.key), &args.at.keyspace);
        return Err(Failure::NotFound(format!("keyspace `{name}` has no key `{key}`")));
    };
    let text = match args.form {
        Some(form) => form.print(&value).map_err(Failure::Misuse)?,
        None => kv::escaped(&value),
    };
    drop(store);
    output::line(text)
}

/// Gives a key a value; makes the store and the keyspace if they are not there.
pub fn put(args: &PutArgs) -> Outcome {
    let store = open(&args.at.store, Access::Create)?;
    let keyspace = store.keyspace(&args.at.keyspace)?;
    commit(store, args.durability.durability, |batch| batch.put(&keyspace, &args.key, &args.value))
}

/// Deletes a key.
pub fn delete(args: &DeleteArgs) -> Outcome {
    let store = open(&args.at.store, Access::Write)?;
    let keyspace = existing(&store, &args.at.keyspace)?;
    commit(store, args.durability.durability, |batch| batch.delete(&keyspace, &args.key))
}

/// Merges an operand; makes the store and the keyspace if they are not there and an operator is named.
pub fn merge(args: MergeArgs) -> Outcome {
    let access = if args.operator.is_some() { Access::Create } else { Access::Write };
    let store = open(&args.at.store, access)?;
    let keyspace = merging(&store, &args.at, args.operator.as_deref())?;
    let mut operand = args.operand;
    OperandForm::of(keyspace.operator().unwrap_or_default()).encode(&mut operand).map_err(Failure::Misuse)?;
    commit(store, args.durability.durability, |batch| batch.merge(&keyspace, &args.key, &operand))
}

/// The keyspace, made with `operator` if that is given, else as it is.
fn merging(store: &Store, at: &KeyspaceArgs, operator: Option<&str>) -> Outcome<Keyspace> {
    let Some(operator) = operator else {
        let keyspace = existing(store, &at.keyspace)?;
        if keyspace.operator().is_none() {
            let name = &at.keyspace;
            return Err(Failure::Misuse(format!(
                "keyspace `{name}` has no merge operator; make one with `pando merge … --keyspace NEW --merge OPERATOR`"
            )));
        }
        return Ok(keyspace);
    };
    Ok(store.keyspace_with(&at.keyspace, KeyspaceOptions::new().merge_named(operator)?)?)
}

/// Commits what `fill` writes, and closes the store.
fn commit(store: Store, durability: DurabilityName, fill: impl FnOnce(&mut Batch)) -> Outcome {
    let mut batch = store.batch();
    fill(&mut batch);
    batch.commit(durability.into())?;
    Ok(store.close()?)
}
