//! Options of an index. The index type declares them, a caller chooses them for a keyspace, and the catalogue stores
//! them.
//!
//! ```text
//!   OptionSpec  { name, about, default, values: a range of numbers, or words }        one list per type
//!   IndexOptions{ type, mode?, (name, value)… }     choices of a caller: from a builder or "cola:growth=8,mode=paper"
//!   Settings    { mode, a value for each spec }     the complete settings of an open index
//! ```
//!
//! 1. A caller names a type and some values ([`IndexOptions`]). The store adds its defaults when the keyspace is
//!    created (`IndexOptions::with_defaults`) and checks all values. From then on these values belong to the keyspace.
//! 2. The catalogue holds the mode and the values that differ from the defaults. Therefore the default of an option
//!    must never change. To introduce a better default, add an option with another name.
//! 3. Opening turns the stored values into [`Settings`]. A name or a value that this version does not know causes an
//!    error, whose text contains this name or value.
//!
//! Invariant: an `IndexOptions` holds its values in the order of the specs of its type. Each option occurs at most
//! once.

use std::fmt;

use super::spec::Settings;
use super::types::{IndexKind, Mode};
use crate::base::codec::{Reader, put_bytes, put_varint};
use crate::base::{Error, Result};
use crate::filter::Filters;
use crate::resolve::Operator;
use crate::run::Compression;

pub use super::spec::{COMPRESSION, FILTERS, OptionSpec, Values};
pub(crate) use super::spec::{compression_value, filters_value};

/// The name of the mode in the text form.
const MODE: &str = "mode";
/// Maximum number of options of a type. It limits the number of options decoded from a catalogue.
const MOST_OPTIONS: usize = 64;

/// A type of index with some of its options set. Options that are not set take the defaults of the store, or of the
/// type.
///
/// Each type has a builder of its own ([`StbeOptions`](crate::StbeOptions)). The text form is
/// `type:name=value,name=value`.
///
/// ```
/// use pandodb::{IndexOptions, Mode, StbeOptions};
/// let options: IndexOptions = "stbe:fanout=4,mode=paper".parse()?;
/// assert_eq!(options, StbeOptions::new().fanout(4).mode(Mode::Paper).into());
/// assert_eq!(options.to_string(), "stbe:fanout=4,mode=paper");
/// let error = "stbe:fanout=1".parse::<IndexOptions>().unwrap_err();
/// assert!(error.to_string().contains("2 to 64"), "{error}");
/// # Ok::<(), pandodb::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexOptions {
    kind: IndexKind,
    mode: Option<Mode>,
    /// The names and values of the options that were set, in the order of the type's specs.
    values: Vec<(&'static str, u64)>,
}

impl From<IndexKind> for IndexOptions {
    fn from(kind: IndexKind) -> IndexOptions {
        IndexOptions { kind, mode: None, values: Vec::new() }
    }
}

impl IndexOptions {
    /// The type of the index.
    pub fn kind(&self) -> IndexKind {
        self.kind
    }

    /// The mode, if the caller chose one.
    pub fn mode(&self) -> Option<Mode> {
        self.mode
    }

    /// Sets the mode.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> IndexOptions {
        self.mode = Some(mode);
        self
    }

    /// Sets one option from text; `mode` also counts as an option.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the type has no such option, or the value is not valid.
    pub fn with(mut self, name: &str, value: &str) -> Result<IndexOptions> {
        if name == MODE {
            let mode = Mode::from_name(value);
            let refuse = || Error::invalid(format!("`mode` is {value}; it must be one of product, paper"));
            self.mode = Some(mode.ok_or_else(refuse)?);
            return Ok(self);
        }
        let value = self.spec(name)?.parse(value)?;
        self.put(name, value);
        Ok(self)
    }

    /// Sets an option of the type, for its builder. The value is checked when the keyspace is created.
    #[must_use]
    pub(crate) fn set(mut self, spec: &OptionSpec, value: u64) -> IndexOptions {
        self.put(spec.name, value);
        self
    }

    /// Sets the filters of new runs, for a builder of a type with the option [`FILTERS`].
    #[must_use]
    pub(crate) fn set_filters(self, filters: Filters) -> IndexOptions {
        self.set(&FILTERS, filters_value(filters))
    }

    /// Sets the compression, for a builder of a type with the option [`COMPRESSION`].
    #[must_use]
    pub(crate) fn set_compression(self, compression: Compression) -> IndexOptions {
        self.set(&COMPRESSION, compression_value(compression))
    }

    /// The names and values of the options that were set, as text. The mode is left out.
    pub fn chosen(&self) -> impl Iterator<Item = (&'static str, String)> + '_ {
        let spec = |name| self.kind.options().iter().find(|spec| spec.name == name).expect("set by its spec");
        self.values.iter().map(move |&(name, value)| (name, spec(name).show(value)))
    }

    /// The value of an option as text: the value that was set, or the default of the type.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the type has no such option.
    pub fn value(&self, name: &str) -> Result<String> {
        let spec = self.spec(name)?;
        Ok(spec.show(self.get(name).unwrap_or(spec.default)))
    }

    /// Sets an option of the type without checking the value. [`IndexOptions::check`] checks it later.
    pub(crate) fn put(&mut self, name: &str, value: u64) {
        let specs = self.kind.options();
        let place = |name: &str| specs.iter().position(|spec| spec.name == name).expect("a builder knows its type");
        self.values.retain(|(other, _)| *other != name);
        let at = self.values.partition_point(|(other, _)| place(other) < place(name));
        self.values.insert(at, (specs[place(name)].name, value));
        debug_assert!(self.values.is_sorted_by_key(|(name, _)| place(name)), "values are in the order of the specs");
    }

    /// The value that was set for an option.
    fn get(&self, name: &str) -> Option<u64> {
        self.values.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }

    fn spec(&self, name: &str) -> Result<&'static OptionSpec> {
        let specs = self.kind.options();
        specs.iter().find(|spec| spec.name == name).ok_or_else(|| {
            let names: Vec<&str> = specs.iter().map(|spec| spec.name).chain([MODE]).collect();
            let detail = format!("index `{}` has no option `{name}`; it has {}", self.kind, names.join(", "));
            Error::invalid(detail)
        })
    }

    /// Checks the mode and all values.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the first invalid value.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(mode) = self.mode.filter(|mode| !self.kind.modes().contains(mode)) {
            return Err(Error::invalid(format!("index `{}` has no {} mode", self.kind, mode.name())));
        }
        self.values.iter().try_for_each(|&(name, value)| self.spec(name)?.check(value))
    }

    /// The options of a new keyspace. The values of `self` have priority, then the values of `store` if it has the same
    /// type. Then follow the store-wide values `common`, which are given by the names of options, and the store-wide
    /// `mode`. Values that equal the default of the type are left out.
    pub(crate) fn with_defaults(&self, store: &IndexOptions, mode: Mode, common: &[(&str, u64)]) -> IndexOptions {
        let store = (store.kind == self.kind).then_some(store);
        let mut full = IndexOptions::from(self.kind);
        // Ignore a default mode that the type does not support. If the caller chose an unsupported mode, the check of
        // the options reports it.
        let mode = if self.kind.modes().contains(&mode) { mode } else { self.kind.modes()[0] };
        full.mode = Some(self.mode.or(store.and_then(|store| store.mode)).unwrap_or(mode));
        for spec in self.kind.options() {
            let of_store = || store.and_then(|store| store.get(spec.name));
            let has = |(name, value): &&(&str, u64)| *name == spec.name && spec.check(*value).is_ok();
            let in_common = || common.iter().find(has).map(|(_, value)| *value);
            let value = self.get(spec.name).or_else(of_store).or_else(in_common);
            if let Some(value) = value.filter(|&value| value != spec.default) {
                full.values.push((spec.name, value));
            }
        }
        full
    }

    /// The first option in `self` that differs in a keyspace with the options `stored`: returns its name, the stored
    /// value and the requested value.
    pub(crate) fn conflict(&self, stored: &IndexOptions) -> Option<(&'static str, String, String)> {
        if let Some(mode) = self.mode.filter(|&mode| mode != stored.mode.unwrap_or_default()) {
            return Some((MODE, stored.mode.unwrap_or_default().name().into(), mode.name().into()));
        }
        self.kind.options().iter().find_map(|spec| self.difference(stored, spec))
    }

    /// The first option in `self` that differs in a keyspace with the options `stored` and must not be changed, as in
    /// [`IndexOptions::conflict`].
    pub(crate) fn fixed_conflict(&self, stored: &IndexOptions) -> Option<(&'static str, String, String)> {
        let mut fixed = self.kind.options().iter().filter(|spec| spec.is_fixed);
        fixed.find_map(|spec| self.difference(stored, spec))
    }

    /// The name, the stored value and the requested value of an option, if they differ.
    fn difference(&self, stored: &IndexOptions, spec: &OptionSpec) -> Option<(&'static str, String, String)> {
        let has = stored.get(spec.name).unwrap_or(spec.default);
        let wanted = self.get(spec.name).filter(|&wanted| wanted != has)?;
        Some((spec.name, spec.show(has), spec.show(wanted)))
    }

    /// The complete settings of an index with these options.
    pub(crate) fn settings(&self, memtable_bytes: u64, operator: Option<Operator>) -> Settings {
        let value = |spec: &OptionSpec| self.get(spec.name).unwrap_or(spec.default);
        let values = self.kind.options().iter().map(|spec| (spec.name, value(spec))).collect();
        Settings::new(self.mode.unwrap_or_default(), values, memtable_bytes, operator)
    }

    /// Appends the persisted form. It has the name of the type, the length of the rest, the mode, the number of values,
    /// and then the name and the value of each option.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        assert!(self.values.len() <= MOST_OPTIONS, "an opening accepts as many options");
        put_bytes(out, self.kind.name().as_bytes());
        let mut body = Vec::new();
        put_varint(&mut body, self.mode.unwrap_or_default() as u64);
        put_varint(&mut body, self.values.len() as u64);
        for (name, value) in &self.values {
            put_bytes(&mut body, name.as_bytes());
            put_varint(&mut body, *value);
        }
        put_bytes(out, &body);
    }

    /// Decodes the options of a type. The bytes begin after the type's name.
    ///
    /// # Errors
    /// [`Error::Corruption`] if the bytes are damaged; [`Error::Unsupported`] if this version does not know one of the
    /// options or values.
    pub(super) fn decode_values(kind: IndexKind, bytes: &[u8]) -> Result<IndexOptions> {
        let name = kind.name();
        let mut options = IndexOptions::from(kind);
        let mut body = Reader::new(bytes, "options of a keyspace");
        let lacks =
            |what: &str| Error::Unsupported { detail: format!("index `{name}` with {what} is of a later version") };
        options.mode = match body.varint()? {
            0 => Some(Mode::Product),
            1 => Some(Mode::Paper),
            other => return Err(lacks(&format!("mode {other}"))),
        };
        let count = body.count(2)?.min(MOST_OPTIONS + 1);
        for _ in 0..count {
            let option = String::from_utf8_lossy(body.bytes()?).into_owned();
            let value = body.varint()?;
            if options.spec(&option).and_then(|spec| spec.check(value)).is_err() {
                return Err(lacks(&format!("option `{option}` = {value}")));
            }
            if options.get(&option).is_some() {
                return Err(body.corrupt("an option is present twice"));
            }
            options.put(&option, value);
        }
        if !body.is_empty() {
            return Err(body.corrupt("trailing bytes"));
        }
        options.check().map_err(|e| lacks(&e.what()))?;
        Ok(options)
    }
}

impl fmt::Display for IndexOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        let mode = self.mode.map(|mode| (MODE, mode.name().to_owned()));
        for (i, (name, value)) in self.chosen().chain(mode).enumerate() {
            write!(f, "{}{name}={value}", if i == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}
