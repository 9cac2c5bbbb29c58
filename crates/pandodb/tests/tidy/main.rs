//! Tests of tidiness: rules that a reviewer would otherwise have to check in every change.
//!
//! 1. *Layering*: a module of the engine uses only modules that come before it in [`LAYERS`].
//! 2. *Size*: no file has over [`MAX_FILE_LINES`] lines, and no function has over [`MAX_FN_LINES`] lines without a `//
//!    long:` reason above it.
//! 3. *Leftovers*: no code has `todo!`, `dbg!`, `unimplemented!` or an ignored test, and the engine does not print.
//! 4. *Purpose*: every source file begins with `//!`.
//! 5. *Dead modules*: every source file is reached by a `mod` declaration.
//! 6. *Primitives*: the engine uses threads and locks through `base::sync` only, so that the explorer can replace them.
//! 7. *Seeded bugs*: each bug has exactly one site, in the engine or in the lab, and is not used as control flow
//!    ([`seeded`]). Only the tests of the proof crate enable the feature that contains the switch.
//! 8. *Links*: the target of every relative link in the documents exists.
//! 9. *Unsafe*: in the engine, only the files of [`UNSAFE_IN`] have `unsafe` blocks. A comment `// SAFETY:` directly
//!    above each block says why the block is sound.
//!
//! Each check is a function from a text to a list of complaints. The checks use no parser: they count braces in code
//! whose comments and literals were blanked ([`code_only`]). Each check has a test below, which applies the check to
//! some lines that break the rule.

mod seeded;
mod structure;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The engine's modules, lowest first.
const LAYERS: [&str; 15] = [
    "base", "device", "space", "wal", "pool", "rows", "filter", "blocks", "run", "resolve", "memtable", "sched",
    "index", "store", "check",
];
/// The allowed uses of a higher layer. A comment gives the reason for each.
const EXCEPTIONS: [(&str, &str); 1] = [
    // `Store::verify` passes its engine to the verifier, and the verifier reads the store's catalogue. Therefore each
    // module uses the other.
    ("store", "check"),
];
const MAX_FILE_LINES: usize = 800;
const MAX_FN_LINES: usize = 70;
/// Words that are forbidden in all code, including tests.
const LEFTOVERS: [&str; 4] = ["todo!", "dbg!", "unimplemented!", "#[ignore"];
/// Words that are forbidden in the engine's sources.
const NOT_IN_ENGINE: [&str; 4] = ["println!", "print!", "eprintln!", "eprint!"];
/// The files of the engine that may contain `unsafe`. The crate denies `unsafe` by default, and each of these files has
/// an attribute that allows it.
const UNSAFE_IN: [&str; 3] = ["base/slab.rs", "device/mapped.rs", "device/uring.rs"];
/// Names that only `base::sync`, the switch of seeded bugs, the devices and unit tests may use. From `std::sync`, other
/// modules may use only `Arc` and `Weak`.
const PRIMITIVES: [&str; 4] = ["parking_lot", "arc_swap", "shuttle", "std::thread"];
const FREE: [&str; 2] = ["Arc", "Weak"];

// ---- reading Rust without a parser ----

/// Returns `source` with spaces in place of comments, strings and character literals. Line breaks are kept.
fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = match literal_end(bytes, at) {
            Some(end) => end,
            None => {
                out.push(if bytes[at].is_ascii() { bytes[at] as char } else { '_' });
                at += 1;
                continue;
            }
        };
        bytes[at..end].iter().for_each(|&b| out.push(if b == b'\n' { '\n' } else { ' ' }));
        at = end;
    }
    out
}

/// The end of the comment or literal that begins at `at`; `None` if neither begins at this position.
fn literal_end(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    let in_word = at > 0 && is_word(bytes[at - 1]);
    if rest.starts_with(b"//") {
        return Some(at + rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()));
    }
    if rest.starts_with(b"/*") {
        return Some(find(bytes, at + 2, b"*/"));
    }
    if rest[0] == b'"' {
        return Some(quoted_end(bytes, at + 1, b'"'));
    }
    let raw = if rest.starts_with(b"br") { 2 } else { 1 };
    if (rest[0] == b'r' || raw == 2) && !in_word {
        let hashes = rest[raw..].iter().take_while(|&&b| b == b'#').count();
        if rest.get(raw + hashes) == Some(&b'"') {
            let close = [&b"\""[..], &vec![b'#'; hashes]].concat();
            return Some(find(bytes, at + raw + hashes + 1, &close));
        }
    }
    if rest[0] != b'\'' {
        return None;
    }
    // A lifetime has no closing quote after its first character, so it is not a literal.
    let width = (2..=5).find(|&i| rest.get(i).is_none_or(|b| b & 0xc0 != 0x80)).unwrap_or(2);
    if rest.get(1) == Some(&b'\\') || rest.get(width) == Some(&b'\'') {
        return Some(quoted_end(bytes, at + 1, b'\''));
    }
    None
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> usize {
    let hit = bytes[from..].windows(what.len()).position(|window| window == what);
    hit.map_or(bytes.len(), |i| from + i + what.len())
}

fn quoted_end(bytes: &[u8], from: usize, quote: u8) -> usize {
    let mut at = from;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The positions at which `word` occurs in `code` as a whole word.
fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    let edge = |at: Option<&u8>, of: u8| !is_word(of) || at.is_none_or(|&b| !is_word(b));
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let (first, last) = (word.as_bytes()[0], word.as_bytes()[word.len() - 1]);
        edge(at.checked_sub(1).map(|i| &bytes[i]), first) && edge(bytes.get(at + word.len()), last)
    })
}

/// The identifier at the start of `text`. White space before the identifier is skipped.
fn ident(text: &str) -> &str {
    let text = text.trim_start();
    &text[..text.bytes().position(|b| !is_word(b)).unwrap_or(text.len())]
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

// ---- the rules ----

/// The names that follow `crate::` in the code, with their positions. The members of a group `crate::{…}` are included.
fn root_names(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for at in words(code, "crate::") {
        let rest = code[at + "crate::".len()..].trim_start();
        let Some(group) = rest.strip_prefix('{') else {
            found.push((at, ident(rest).to_owned()));
            continue;
        };
        let (mut depth, mut start) = (0, true);
        for (i, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => start = true,
                c if start && is_word(c as u8) => {
                    found.push((at, ident(&group[i..]).to_owned()));
                    start = false;
                }
                _ => {}
            }
        }
    }
    found
}

/// The names in the root module of the crate that a file reaches through paths of `super::`. The file is `depth`
/// modules below the root.
fn names_above(code: &str, depth: usize) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for at in words(code, "super::") {
        let mut rest = &code[at..];
        let mut steps = 0;
        while let Some(tail) = rest.strip_prefix("super::") {
            (rest, steps) = (tail, steps + 1);
        }
        if steps >= depth && LAYERS.contains(&ident(rest)) {
            found.push((at, ident(rest).to_owned()));
        }
    }
    found
}

/// The names that the crate's root re-exports, each with its layer.
fn re_exports(lib: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for at in words(lib, "pub use") {
        let statement = &lib[at + "pub use".len()..];
        let statement = &statement[..statement.find(';').unwrap_or(statement.len())];
        let layer = ident(statement);
        for name in statement.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|name| !name.is_empty()) {
            found.insert(name.to_owned(), layer.to_owned());
        }
    }
    found
}

/// The uses of layers that are not below the layer of the file. `path` is relative to `src`.
fn layering(path: &Path, code: &str, exports: &BTreeMap<String, String>) -> Vec<String> {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    let own = parts[0].trim_end_matches(".rs");
    let Some(level) = LAYERS.iter().position(|&layer| layer == own) else {
        return if own == "lib" { vec![] } else { vec![format!("{}: `{own}` is no layer", path.display())] };
    };
    let depth = parts.len() - usize::from(parts.last() == Some(&"mod.rs"));
    let mut complaints = Vec::new();
    for (at, name) in root_names(code).into_iter().chain(names_above(code, depth)) {
        let used = if LAYERS.contains(&name.as_str()) { Some(&name) } else { exports.get(&name) };
        let used_level = used.and_then(|used| LAYERS.iter().position(|layer| layer == used));
        let fine = used_level.is_some_and(|used_level| {
            used_level <= level || EXCEPTIONS.iter().any(|&(from, to)| from == own && to == LAYERS[used_level])
        });
        if !fine {
            complaints.push(format!("{}:{}: `{own}` uses `{name}`", path.display(), line_of(code, at)));
        }
    }
    complaints
}

/// Functions that are too long and have no reason above them, as (line, name, number of lines).
fn long_functions(source: &str) -> Vec<(usize, String, usize)> {
    let code = code_only(source);
    let lines: Vec<&str> = source.lines().collect();
    let mut found = Vec::new();
    for at in words(&code, "fn") {
        let name = ident(&code[at + 2..]);
        let Some(end) = body_end(&code[at..]).filter(|_| !name.is_empty()) else { continue };
        let (first, last) = (line_of(&code, at), line_of(&code, at + end));
        let excused = lines[..first - 1]
            .iter()
            .rev()
            .take_while(|line| line.trim_start().starts_with("//") || line.trim_start().starts_with("#["))
            .any(|line| line.trim_start().strip_prefix("// long:").is_some_and(|reason| !reason.trim().is_empty()));
        if last - first + 1 > MAX_FN_LINES && !excused {
            found.push((first, name.to_owned(), last - first + 1));
        }
    }
    found
}

/// The end of the body of the function at the start of `code`; `None` for a declaration.
fn body_end(code: &str) -> Option<usize> {
    let (mut brackets, mut braces) = (0, 0);
    for (i, c) in code.char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets -= 1,
            ';' if brackets == 0 && braces == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces -= 1;
                if braces == 0 {
                    return Some(i);
                }
            }
            _ => {}
        }
    }
    None
}

/// The forbidden words in the code: (line, word).
fn leftovers<'a>(code: &str, forbidden: &[&'a str]) -> Vec<(usize, &'a str)> {
    forbidden.iter().flat_map(|word| words(code, word).map(move |at| (line_of(code, at), *word))).collect()
}

/// Primitives that are not imported from `base::sync`: (line, name). `path` is relative to `src`.
fn primitives(path: &Path, code: &str) -> Vec<(usize, String)> {
    let tests = path.iter().any(|part| part == "tests" || part == "tests.rs");
    if tests || ["device", "base/sync", "base/seeded.rs"].iter().any(|free| path.starts_with(free)) {
        return vec![];
    }
    let named = leftovers(code, &PRIMITIVES).into_iter().map(|(line, word)| (line, word.to_owned()));
    let from_std = words(code, "std::sync::").flat_map(|at| {
        let rest = &code[at + "std::sync::".len()..];
        let group = rest.strip_prefix('{').map(|group| &group[..group.find('}').unwrap_or(group.len())]);
        let names = group.map_or(vec![ident(rest)], |group| group.split(',').map(ident).collect());
        names.into_iter().filter(|name| !name.is_empty() && !FREE.contains(name)).map(move |name| (at, name))
    });
    named.chain(from_std.map(|(at, name)| (line_of(code, at), format!("std::sync::{name}")))).collect()
}

/// Uses of `unsafe` that break the rule: (line, complaint). `path` is relative to `src`.
fn unsafe_uses(path: &Path, source: &str) -> Vec<(usize, &'static str)> {
    let code = code_only(source);
    let lines: Vec<&str> = source.lines().map(str::trim_start).collect();
    let may = UNSAFE_IN.iter().any(|file| path == Path::new(file));
    let complaint = |at: usize| {
        let line = line_of(&code, at);
        let comment = lines[..line - 1].iter().rev().take_while(|line| line.starts_with("//"));
        let explained = comment.clone().any(|line| line.strip_prefix("// SAFETY:").is_some_and(|why| !why.is_empty()));
        let how = if !may {
            "`unsafe` here"
        } else if !["{", "impl ", "impl<"].iter().any(|how| code[at + "unsafe".len()..].trim_start().starts_with(how)) {
            "`unsafe` that is neither a block nor an `impl`"
        } else if !explained {
            "`unsafe` without a line `SAFETY:`"
        } else {
            return None;
        };
        Some((line, how))
    };
    let allowed = leftovers(&code, &["unsafe_code"]);
    let misplaced = allowed.first().filter(|_| !may && path != Path::new("lib.rs"));
    let useless = (may && allowed.is_empty()).then_some((1, "listed, but `unsafe_code` is not allowed here"));
    let misplaced = misplaced.map(|(line, _)| (*line, "`unsafe_code` allowed here"));
    words(&code, "unsafe").filter_map(complaint).chain(misplaced).chain(useless).collect()
}

/// For each `mod name;` in `file`, the two files that may define it.
fn modules_of(file: &Path, code: &str) -> Vec<[PathBuf; 2]> {
    let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let folder = file.parent().unwrap_or(Path::new(""));
    let folder = if ["lib", "main", "mod"].contains(&stem) { folder.to_owned() } else { folder.join(stem) };
    words(code, "mod")
        .filter_map(|at| {
            let rest = code[at + 3..].trim_start();
            let name = ident(rest);
            (!name.is_empty() && rest[name.len()..].trim_start().starts_with(';')).then_some(name)
        })
        .map(|name| [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")])
        .collect()
}

/// The files that no `mod` reaches, starting from `roots`.
fn dead_modules(files: &BTreeMap<PathBuf, String>, roots: &[&str]) -> BTreeSet<PathBuf> {
    let mut dead: BTreeSet<PathBuf> = files.keys().cloned().collect();
    let mut todo: Vec<PathBuf> = roots.iter().map(PathBuf::from).collect();
    while let Some(file) = todo.pop() {
        if dead.remove(&file) {
            todo.extend(modules_of(&file, &code_only(&files[&file])).into_iter().flatten());
        }
    }
    dead
}

/// The targets of a document's relative links, without their anchors.
fn links(markdown: &str) -> Vec<&str> {
    let targets = markdown.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let targets = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    targets.filter_map(|target| target.split('#').next()).collect()
}

// ---- the rules, applied ----

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every file with this extension under `folder`, which is relative to the root. The key is the path below `folder`.
fn read(folder: &str, ending: &str) -> BTreeMap<PathBuf, String> {
    let base = root().join(folder);
    let mut found = BTreeMap::new();
    let mut folders = vec![base.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the project") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == ending) {
                let text = std::fs::read_to_string(&path).expect("text");
                found.insert(path.strip_prefix(&base).expect("below").to_owned(), text);
            }
        }
    }
    assert!(!found.is_empty(), "nothing to check in {folder}");
    found
}

fn assert_none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

const CODE: [&str; 12] = [
    "crates/pandodb/src",
    "crates/pandodb/tests",
    "crates/proof/src",
    "crates/proof/tests",
    "crates/lab/src",
    "crates/lab/tests",
    "crates/cli/src",
    "crates/cli/tests",
    "crates/paged/src",
    "crates/paged/tests",
    "crates/explore/src",
    "crates/explore/loom/src",
];

#[test]
fn layers_use_only_layers_below() {
    let files = read(CODE[0], "rs");
    let lib = code_only(&files[Path::new("lib.rs")]);
    for layer in LAYERS {
        assert_eq!(words(&lib, &format!("pub mod {layer};")).count(), 1, "lib.rs does not declare `{layer}`");
    }
    assert_eq!(words(&lib, "mod").count(), LAYERS.len(), "a module of lib.rs is missing from LAYERS");
    let exports = re_exports(&lib);
    assert_none(files.iter().flat_map(|(path, text)| layering(path, &code_only(text), &exports)).collect());
}

#[test]
fn files_and_functions_are_short() {
    let mut complaints = Vec::new();
    for folder in CODE {
        for (path, text) in read(folder, "rs") {
            let name = format!("{folder}/{}", path.display());
            if text.lines().count() > MAX_FILE_LINES {
                complaints.push(format!("{name}: {} lines", text.lines().count()));
            }
            let long = long_functions(&text).into_iter();
            complaints
                .extend(long.map(|(line, function, lines)| format!("{name}:{line}: `{function}`: {lines} lines")));
        }
    }
    assert_none(complaints);
}

#[test]
fn sources_contain_no_leftovers() {
    let mut complaints = Vec::new();
    for folder in CODE {
        let mut forbidden = LEFTOVERS.to_vec();
        if folder == CODE[0] {
            forbidden.extend(NOT_IN_ENGINE);
        }
        for (path, text) in read(folder, "rs") {
            let found = leftovers(&code_only(&text), &forbidden).into_iter();
            complaints.extend(found.map(|(line, word)| format!("{folder}/{}:{line}: `{word}`", path.display())));
        }
    }
    assert_none(complaints);
}

#[test]
fn primitives_are_used_through_base_sync_only() {
    let files = read(CODE[0], "rs");
    let found = files.iter().flat_map(|(path, text)| {
        let found = primitives(path, &code_only(text)).into_iter();
        found.map(move |(line, what)| format!("{}:{line}: `{what}`, use `base::sync`", path.display()))
    });
    assert_none(found.collect());
}

#[test]
fn unsafe_is_in_listed_files_only_and_says_why_it_is_sound() {
    let files = read(CODE[0], "rs");
    assert!(files[Path::new("lib.rs")].contains("\n#![deny(unsafe_code)]\n"), "the crate does not deny unsafe code");
    assert!(UNSAFE_IN.iter().all(|file| files.contains_key(Path::new(file))), "a file that is not there");
    let found = files.iter().flat_map(|(path, text)| {
        unsafe_uses(path, text).into_iter().map(move |(line, how)| format!("{}:{line}: {how}", path.display()))
    });
    assert_none(found.collect());
}

#[test]
fn every_source_file_has_a_header_and_is_reached_by_a_mod() {
    for folder in [CODE[0], CODE[2], CODE[8]] {
        let files = read(folder, "rs");
        let silent = files.iter().filter(|(_, text)| !text.starts_with("//! "));
        assert_none(silent.map(|(path, _)| format!("{folder}/{}: no `//!`", path.display())).collect());
        let dead = dead_modules(&files, &["lib.rs", "main.rs"]);
        assert_none(dead.iter().map(|path| format!("{folder}/{}: no `mod` leads here", path.display())).collect());
    }
}

#[test]
fn links_lead_to_files() {
    let mut documents: Vec<(PathBuf, String)> =
        read("docs", "md").into_iter().map(|(path, text)| (root().join("docs").join(path), text)).collect();
    for name in ["README.md", "CHANGELOG.md", "crates/cli/README.md"] {
        documents.push((root().join(name), std::fs::read_to_string(root().join(name)).expect("a document")));
    }
    let mut complaints = Vec::new();
    for (path, text) in &documents {
        let folder = path.parent().expect("a file has a folder");
        let broken = links(text).into_iter().filter(|target| !folder.join(target).exists());
        complaints.extend(broken.map(|target| format!("{}: {target}", path.display())));
    }
    assert_none(complaints);
}

// ---- the checks, checked ----

#[test]
fn code_only_blanks_comments_and_literals() {
    let source =
        "let a = \"x { \\\" y\"; // todo!\nlet b = '{'; let c: &'a str = r#\"dbg!\"#; /* } */ d('\\'', 'ε', b'}')";
    let code = code_only(source);
    assert!(!code.contains(['{', '}', 'x', 'ε']) && !code.contains("todo") && !code.contains("dbg"), "{code}");
    assert!(code.contains("let c: &'a str =") && code.matches('\n').count() == 1, "{code}");
}

#[test]
fn layering_finds_every_use_of_a_higher_layer() {
    let exports = re_exports("pub use base::{Error, Result};\npub use store::{Store, Range};");
    let complaints = |path: &str, code: &str| layering(Path::new(path), code, &exports).len();
    assert_eq!(complaints("pool/mod.rs", "use crate::base::X; use crate::Error; use super::device::Y;"), 0);
    assert_eq!(complaints("pool/mod.rs", "use crate::store::X;"), 1);
    assert_eq!(complaints("pool/mod.rs", "use crate::{base::X, index::{A, B}, run};"), 2);
    assert_eq!(complaints("pool/mod.rs", "fn f() -> crate::Store {}"), 1);
    assert_eq!(complaints("pool/mod.rs", "use super::index::X;"), 1);
    assert_eq!(complaints("pool/shard.rs", "use super::super::index::X;"), 1);
    assert_eq!(complaints("run/reader.rs", "use super::filter::X;"), 0);
    assert_eq!(complaints("pool/mod.rs", "use crate::nobody_knows;"), 1);
    assert_eq!(complaints("store/mod.rs", "use crate::check::X;"), 0);
    assert_eq!(complaints("index/mod.rs", "use crate::check::X;"), 1);
    assert_eq!(complaints("novelty.rs", ""), 1);
}

#[test]
fn long_functions_are_found_unless_excused() {
    let body = "    f();\n".repeat(MAX_FN_LINES - 2);
    let short = format!("fn a() {{\n{body}}}\n");
    let long = format!("pub fn b(x: [u8; 3])\nwhere\n    u8: Copy,\n{{\n{body}}}\n");
    assert_eq!(long_functions(&short), []);
    assert_eq!(long_functions(&format!("trait T {{ fn c(); }}\n{long}")), [(2, "b".into(), MAX_FN_LINES + 3)]);
    assert_eq!(long_functions(&format!("/// Does.\n// long: one table\n#[inline]\n{long}")), []);
    assert_eq!(long_functions(&format!("// long:\n{long}")).len(), 1);
    // A brace in a literal does not end the body of a function.
    let tricky = format!("fn d() {{\n    g(\"}}\", '}}');\n{body}{body}}}\n");
    assert_eq!(long_functions(&tricky).len(), 1);
}

#[test]
fn leftovers_are_words_of_code() {
    let code = code_only(
        "// todo!\nfn f() { todo!() }\n#[ignore]\nlet s = \"dbg!\"; my_dbg!(); unsafe { }\nforbid(unsafe_code)",
    );
    assert_eq!(leftovers(&code, &LEFTOVERS), [(2, "todo!"), (3, "#[ignore")]);
    assert_eq!(leftovers("println!(); eprintln!()", &["println!"]).len(), 1);
}

#[test]
fn unsafe_is_found_where_it_is_forbidden_or_unexplained() {
    let count = |path: &str, code: &str| unsafe_uses(Path::new(path), code).len();
    let sound = "#![allow(unsafe_code)]\n// SAFETY: nobody else has it,\n// and it is there.\nlet x = unsafe { f() };";
    assert_eq!(count(UNSAFE_IN[0], sound), 0);
    assert_eq!(count("pool/mod.rs", sound), 2, "the block, and that it is allowed");
    assert_eq!(count(UNSAFE_IN[0], &sound.replace("SAFETY: ", "")), 1);
    assert_eq!(count(UNSAFE_IN[0], &sound.replace("// and it is there.", "")), 1, "not right above it");
    assert_eq!(count(UNSAFE_IN[0], &sound.replace("allow(unsafe_code)", "x")), 1);
    assert_eq!(count(UNSAFE_IN[0], &sound.replace("let x = unsafe", "unsafe fn g()")), 1);
    assert_eq!(count("pool/mod.rs", "// unsafe\nlet s = \"unsafe\"; let not_unsafe = 1;"), 0);
}

#[test]
fn primitives_are_found_where_they_are_forbidden() {
    let count = |path: &str, code: &str| primitives(Path::new(path), code).len();
    assert_eq!(count("pool/mod.rs", "use std::sync::Arc; use std::sync::{Arc, Weak};"), 0);
    assert_eq!(count("pool/mod.rs", "use std::sync::{Arc, Mutex};"), 1);
    assert_eq!(count("pool/mod.rs", "std::sync::atomic::AtomicU64::new(1)"), 1);
    assert_eq!(count("pool/mod.rs", "use parking_lot::Mutex; std::thread::yield_now()"), 2);
    for allowed in ["device/host.rs", "base/sync/mod.rs", "pool/tests.rs", "wal/tests/write.rs"] {
        assert_eq!(count(allowed, "use parking_lot::Mutex;"), 0);
    }
    assert_eq!(count("base/range.rs", "use parking_lot::Mutex;"), 1);
}

#[test]
fn dead_modules_are_found() {
    let source = |path: &str, text: &str| (PathBuf::from(path), text.to_owned());
    let files = BTreeMap::from([
        source("lib.rs", "pub mod a;\nmod inline { }\n// mod dead;"),
        source("a/mod.rs", "mod b;"),
        source("a/b.rs", "mod c;"),
        source("a/b/c.rs", ""),
        source("dead.rs", ""),
        source("a/gone.rs", ""),
    ]);
    let dead = dead_modules(&files, &["lib.rs", "main.rs"]);
    assert_eq!(dead, BTreeSet::from([PathBuf::from("a/gone.rs"), PathBuf::from("dead.rs")]));
}

#[test]
fn links_are_found() {
    let text = "[a](b.md) [c](d/e.rs#L3), [f](https://example.org) and [g](#here)";
    assert_eq!(links(text), ["b.md", "d/e.rs"]);
}
