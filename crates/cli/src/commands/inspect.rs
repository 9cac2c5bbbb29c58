//! `inspect`: prints the structures on disk, decoded by the engine's own decoders. The command changes nothing.

use pandodb::check::{self, Inspect};

use super::require;
use crate::{
    args::{InspectArgs, Structure},
    failure::{Failure, Outcome},
    output,
};

/// Prints one structure.
pub fn run(args: &InspectArgs) -> Outcome {
    let what = structure(args)?;
    require(&args.store.store)?;
    let text = check::inspect(&args.store.store, what)?;
    output::line(text.trim_end())
}

fn structure(args: &InspectArgs) -> Outcome<Inspect> {
    let needs_id = matches!(args.what, Structure::Run | Structure::Block);
    if !needs_id && args.id.is_some() {
        return Err(Failure::Misuse("only `run` and `block` take a number after them, as in `run 7`".into()));
    }
    let id = || {
        let text = args.id.as_deref().ok_or_else(|| {
            Failure::Misuse(
                "the number is missing: write `run ID`, or `block PAGE` with the number of the block's first page"
                    .into(),
            )
        })?;
        number(text).ok_or_else(|| {
            Failure::Misuse(format!(
                "`{text}` is not a number; write it in decimal, such as 123, or in hexadecimal, such as 0x7b"
            ))
        })
    };
    Ok(match args.what {
        Structure::Superblock => Inspect::Superblock,
        Structure::Catalog => Inspect::Catalog,
        Structure::Trunk => Inspect::Trunk,
        Structure::Log => Inspect::Log,
        Structure::Run => Inspect::Run(id()?),
        Structure::Block => Inspect::Block(id()?),
    })
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_parsed_in_decimal_and_hexadecimal() {
        assert_eq!((number("123"), number("0x7b"), number("x"), number("-1")), (Some(123), Some(123), None, None));
    }
}
