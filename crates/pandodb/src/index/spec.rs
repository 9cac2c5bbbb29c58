//! The options that an index type declares, with their valid values, the modes of index types, and the complete
//! settings that an index gets.
//!
//! The module [`super::options`] describes how options are chosen and stored.

use crate::base::{Error, Result};
use crate::filter::Filters;
use crate::resolve::Operator;
use crate::run::Compression;

/// The variant of the index structure. [`Mode::Product`] is for applications. [`Mode::Paper`] is for experiments that
/// make comparisons with the published design.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The variant that was faster in our measurements.
    #[default]
    Product,
    /// The variant of the published design (see the [sources]). For `stbe` this means tiered leaves, one compaction for
    /// each arrival in a node, and a quotient filter for each run.
    ///
    /// [sources]: https://github.com/pandodb/pandodb/blob/main/docs/GLOSSARY.md
    Paper,
}

impl Mode {
    /// The name of the mode on the command line and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Product => "product",
            Mode::Paper => "paper",
        }
    }

    /// The mode with the name `name`.
    pub fn from_name(name: &str) -> Option<Mode> {
        [Mode::Product, Mode::Paper].into_iter().find(|mode| mode.name() == name)
    }
}

/// One option of an index type.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// The name of the option, as in `name=value`.
    pub name: &'static str,
    /// The effect of the option, in one sentence.
    pub about: &'static str,
    /// The value for a keyspace that was created without this option. If the values are words, it is the index of a
    /// word in the list.
    pub default: u64,
    /// The possible values.
    pub values: Values,
    /// Whether the option keeps the value with which the keyspace was created.
    pub is_fixed: bool,
}

/// The possible values of an option.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// Whole numbers between two bounds, both included.
    Range(u64, u64),
    /// One word of a list. The index of a word in the list is persisted.
    Words(&'static [&'static str]),
}

impl OptionSpec {
    /// Checks a value.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]; the error names the option, the value and the valid values.
    pub fn check(&self, value: u64) -> Result<()> {
        let fine = match self.values {
            Values::Range(least, most) => (least..=most).contains(&value),
            Values::Words(words) => value < words.len() as u64,
        };
        if fine { Ok(()) } else { Err(self.refuse(&value.to_string())) }
    }

    /// Parses a value.
    ///
    /// # Errors
    /// The errors of [`OptionSpec::check`].
    pub fn parse(&self, text: &str) -> Result<u64> {
        let value = match self.values {
            Values::Range(..) => text.parse().ok(),
            Values::Words(words) => words.iter().position(|&word| word == text).map(|place| place as u64),
        };
        value.filter(|&value| self.check(value).is_ok()).ok_or_else(|| self.refuse(text))
    }

    /// A value as text, in a form that [`OptionSpec::parse`] accepts.
    pub fn show(&self, value: u64) -> String {
        match self.values {
            Values::Range(..) => value.to_string(),
            Values::Words(words) => {
                words.get(value as usize).map_or_else(|| value.to_string(), |&word| word.to_owned())
            }
        }
    }

    /// The valid values as text.
    pub fn possible(&self) -> String {
        match self.values {
            Values::Range(least, most) => format!("{least} to {most}"),
            Values::Words(words) => words.join(", "),
        }
    }

    fn refuse(&self, value: &str) -> Error {
        let one_of = if matches!(self.values, Values::Words(_)) { "one of " } else { "" };
        Error::invalid(format!("`{}` is {value}; it must be {one_of}{}", self.name, self.possible()))
    }
}

/// The option for the filters of runs.
pub const FILTERS: OptionSpec = OptionSpec {
    name: "filters",
    about: "The filters of new runs; `auto` selects the default of the index and its mode.",
    default: 0,
    values: Values::Words(&["auto", "bloom", "quotient", "maplet"]),
    is_fixed: false,
};

/// The option for compressing the lowest level of a structure.
pub const COMPRESSION: OptionSpec = OptionSpec {
    name: "compression",
    about: "Compression of the leaf blocks that compactions write to the lowest level of the structure.",
    default: 0,
    values: Values::Words(&["none", "lz4"]),
    is_fixed: false,
};

/// The option for compressing the leaves of a tree whose pages are rewritten.
pub const LEAF_COMPRESSION: OptionSpec = OptionSpec {
    about: "Compression of leaves. A leaf stays uncompressed unless this saves 4 KiB, so it suits pages of 16 KiB or more.",
    ..COMPRESSION
};

/// The option for the way in which commits write.
pub const WRITES: OptionSpec = OptionSpec {
    name: "writes",
    about: "Whether commits write to a memtable in front of the tree, or directly to leaves or buffers of the tree in memory.",
    default: 0,
    values: Values::Words(&["memtable", "direct"]),
    is_fixed: true,
};

/// The value of [`FILTERS`] for `filters`.
pub(crate) fn filters_value(filters: Filters) -> u64 {
    match filters {
        Filters::Bloom => 1,
        Filters::Quotient => 2,
        Filters::Maplet => 3,
    }
}

/// The value of [`COMPRESSION`] for `compression`.
pub(crate) fn compression_value(compression: Compression) -> u64 {
    match compression {
        Compression::None => 0,
        Compression::Lz4 => 1,
    }
}

/// The complete settings of an index: the options of its keyspace with all defaults filled in, and the sizes of the
/// store.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The variant of the structure.
    pub mode: Mode,
    /// The unit of sizes: the bytes of the memtables for which the sizes of the structure are chosen.
    pub memtable_bytes: u64,
    /// The operator that folds operands. Without an operator the operands are kept unfolded.
    pub operator: Option<Operator>,
    values: Vec<(&'static str, u64)>,
}

impl Settings {
    /// Settings with a value for each option that the type declares.
    pub(super) fn new(
        mode: Mode,
        values: Vec<(&'static str, u64)>,
        memtable_bytes: u64,
        operator: Option<Operator>,
    ) -> Settings {
        assert!(memtable_bytes > 0, "memtables have bytes");
        Settings { mode, memtable_bytes, operator, values }
    }

    /// The value of an option that the type declares.
    ///
    /// # Panics
    /// If the type does not declare this option.
    pub fn get(&self, name: &str) -> u64 {
        let value = self.values.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
        value.unwrap_or_else(|| panic!("the index type declares no option `{name}`"))
    }

    /// The chosen filters. If the option has the value `auto`, this is the argument `auto`.
    pub fn filters(&self, auto: Filters) -> Filters {
        let filters = [Filters::Bloom, Filters::Quotient, Filters::Maplet];
        let chosen = self.get(FILTERS.name);
        filters.into_iter().find(|&filters| filters_value(filters) == chosen).unwrap_or(auto)
    }

    /// Whether commits write directly to the tree.
    pub fn writes_directly(&self) -> bool {
        self.get(WRITES.name) == 1
    }

    /// The chosen compression.
    pub fn compression(&self) -> Compression {
        if self.get(COMPRESSION.name) == compression_value(Compression::Lz4) {
            Compression::Lz4
        } else {
            Compression::None
        }
    }
}
