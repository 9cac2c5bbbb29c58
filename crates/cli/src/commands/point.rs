//! The commands `get`, `put`, `delete` and `merge`, which handle one key; `delete` also deletes a range of keys.

use std::{
    fs::File,
    io::{self, Read, Write},
};

use pandodb::{Batch, Keyspace, KeyspaceOptions, MAX_VALUE, Store};

use super::{
    Access, existing, open, open_to_read,
    scan::{Bounds, bounds},
};
use crate::{
    args::{DeleteArgs, DurabilityName, GetArgs, KeyspaceArgs, MergeArgs, PutArgs},
    failure::{Failure, Outcome},
    kv,
    operand::OperandForm,
    output::{self, Shown},
};

/// Prints the value of a key. The exit code is 1 if the key does not exist.
pub fn get(args: &GetArgs) -> Outcome {
    let (_store, keyspace) = open_to_read(&args.at)?;
    let Some(value) = keyspace.get(&args.key)? else {
        let (key, name) = (kv::escaped(&args.key), &args.at.keyspace);
        return Err(Failure::NotFound(format!("keyspace `{name}` has no key `{key}`")));
    };
    if args.raw {
        let mut out = output::stdout();
        out.write_all(&value).map_err(|e| output::lost(&e))?;
        return output::finish(out);
    }
    let number = args.form.map(|form| form.print(&value)).transpose().map_err(Failure::Misuse)?;
    output::line(match (args.json, number) {
        (true, Some(number)) => output::json_record(&args.key, Some(Shown::Number(&number))),
        (true, None) => output::json_record(&args.key, Some(Shown::Bytes(&value))),
        (false, Some(number)) => number,
        (false, None) => kv::escaped(&value),
    })
}

/// Sets the value of a key. Creates the store and the keyspace if they do not exist.
pub fn put(args: &PutArgs) -> Outcome {
    let mut value = given_value(args)?;
    let store = open(&args.at.store, Access::Create)?;
    let keyspace = store.keyspace(&args.at.keyspace)?;
    let operator = keyspace.operator().unwrap_or_default();
    OperandForm::of(operator).encode(&mut value).map_err(|why| {
        let name = &args.at.keyspace;
        Failure::Misuse(format!(
            "{why}; values of keyspace `{name}` are counters ({operator}), so give a decimal number"
        ))
    })?;
    commit(store, args.durability.durability, |batch| batch.put(&keyspace, &args.key, &value))
}

/// Reads the value from the command line, stdin or a file.
fn given_value(args: &PutArgs) -> Outcome<Vec<u8>> {
    match (args.value.as_deref(), &args.file) {
        (Some("-"), _) => read_value("stdin", &mut io::stdin().lock()),
        (Some(text), _) => kv::unescape(text).map_err(|why| Failure::Misuse(format!("the value: {why}"))),
        (None, Some(path)) => {
            let name = format!("`{}`", path.display());
            let mut file = File::open(path).map_err(|e| Failure::io(format_args!("opening {name}"), &e))?;
            read_value(&name, &mut file)
        }
        (None, None) => {
            Err(Failure::Misuse("the value is missing: give VALUE, - to read it from stdin, or --file FILE".into()))
        }
    }
}

/// Reads `input` to its end, up to the maximum length of a value.
fn read_value(name: &str, input: &mut dyn Read) -> Outcome<Vec<u8>> {
    let mut value = Vec::new();
    let limit = MAX_VALUE as u64;
    input.take(limit + 1).read_to_end(&mut value).map_err(|e| Failure::io(format_args!("reading {name}"), &e))?;
    if value.len() as u64 > limit {
        let limit = output::bytes(limit);
        return Err(Failure::Misuse(format!(
            "{name} has more than {limit}, the limit for a value; nothing was written"
        )));
    }
    Ok(value)
}

/// Deletes a key or a range of keys.
pub fn delete(args: &DeleteArgs) -> Outcome {
    let range = deleted_range(args)?;
    let store = open(&args.at.store, Access::Write)?;
    let keyspace = existing(&store, &args.at.keyspace)?;
    commit(store, args.durability.durability, |batch| match (&args.key, range) {
        (Some(key), _) => batch.delete(&keyspace, key),
        (None, range) => batch.delete_range(&keyspace, range),
    })
}

/// The range to delete if no key is given. An empty option, which may come from an unset shell variable, must not
/// delete every key.
fn deleted_range(args: &DeleteArgs) -> Outcome<Bounds> {
    let range = &args.range;
    let named = [&range.from, &range.to, &range.prefix].into_iter().flatten().count();
    if args.key.is_none() && !args.all {
        const ALL: &str = "; use --all to delete every key of the keyspace";
        let empty = [&range.from, &range.prefix].into_iter().flatten().all(Vec::is_empty) && range.to.is_none();
        if named == 0 {
            return Err(Failure::Misuse(format!(
                "nothing to delete is named: give a KEY, or a range with --from, --to or --prefix{ALL}"
            )));
        }
        if empty {
            return Err(Failure::Misuse(format!("the range covers every key, because the options are empty{ALL}")));
        }
    }
    bounds(range)
}

/// Merges an operand. If an operator is given, creates the store and the keyspace if they do not exist.
pub fn merge(args: MergeArgs) -> Outcome {
    let access = if args.operator.is_some() { Access::Create } else { Access::Write };
    let store = open(&args.at.store, access)?;
    let keyspace = merging(&store, &args.at, args.operator.as_deref())?;
    let mut operand = args.operand;
    OperandForm::of(keyspace.operator().unwrap_or_default()).encode(&mut operand).map_err(Failure::Misuse)?;
    commit(store, args.durability.durability, |batch| batch.merge(&keyspace, &args.key, &operand))
}

/// Opens the keyspace. If `operator` is given, creates the keyspace if it does not exist.
fn merging(store: &Store, at: &KeyspaceArgs, operator: Option<&str>) -> Outcome<Keyspace> {
    let Some(operator) = operator else {
        let keyspace = existing(store, &at.keyspace)?;
        if keyspace.operator().is_none() {
            let name = &at.keyspace;
            return Err(Failure::Misuse(format!(
                "keyspace `{name}` has no merge operator; create one with `pando keyspace create STORE NAME --merge OPERATOR`"
            )));
        }
        return Ok(keyspace);
    };
    Ok(store.keyspace_with(&at.keyspace, KeyspaceOptions::new().merge_named(operator)?)?)
}

/// Commits the batch that `fill` fills, and closes the store.
fn commit(store: Store, durability: DurabilityName, fill: impl FnOnce(&mut Batch)) -> Outcome {
    let mut batch = store.batch();
    fill(&mut batch);
    batch.commit(durability.into())?;
    Ok(store.close()?)
}
