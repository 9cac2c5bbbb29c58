//! Rules on how the engine's modules refer to each other, and on how many assertions they contain.
//!
//! * *Indexes*: only the registry names an index type; all other code reaches an index through the trait.
//! * *Circles*: the modules of a folder do not import each other in a circle, except for the circles in [`CIRCLES`].
//! * *Assertions*: there are at least [`LEAST_ASSERTIONS`] assertions for every 1,000 lines of code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{CODE, assert_none, code_only, ident, line_of, read, words};

/// The folders of `index/` that contain no index.
const SHARED: [&str; 6] = ["runs", "blobs", "pages", "tree", "hot", "parts"];
/// The places outside of its own folder where an index type may be named. Each has a file and the statements that are
/// allowed there.
const REGISTRY: [(&str, &[&str]); 2] = [
    ("index/registry.rs", &["pub static TYPES", "[&super::", "&super::"]),
    ("index/mod.rs", &["pub mod ", "pub use self::"]),
];

/// The circles of imports that already exist. No further circle may be added to this list.
const CIRCLES: [(&str, &[&str]); 2] = [("device/sim", &["machine", "queue"]), ("filter", &["maplet", "quotient"])];

/// The minimum number of assertions for every 1,000 lines of code.
const LEAST_ASSERTIONS: usize = 30;

/// Names of index types in the code of a file outside the folders of these types: (line, name).
fn named_indexes<'a>(path: &Path, code: &str, indexes: &'a [String]) -> Vec<(usize, &'a str)> {
    let allowed = REGISTRY.iter().find(|(file, _)| path == Path::new(file)).map_or(&[][..], |(_, starts)| starts);
    let own = |index: &str| path.starts_with(Path::new("index").join(index));
    let statement = |at: usize| code[code[..at].rfind('\n').map_or(0, |end| end + 1)..].trim_start();
    let excused = |at: usize| allowed.iter().any(|start| statement(at).starts_with(start));
    let uses =
        indexes.iter().filter(|index| !own(index)).flat_map(|index| words(code, index).map(move |at| (at, index)));
    uses.filter(|(at, _)| !excused(*at)).map(|(at, index)| (line_of(code, at), index.as_str())).collect()
}

/// A file's code without its unit tests.
fn without_tests(code: &str) -> &str {
    let starts = ["#[cfg(test)]\nmod tests {", "#[cfg(test)]\npub(super) mod tests {"];
    let at = starts.iter().filter_map(|start| code.find(start)).min();
    at.map_or(code, |at| &code[..at])
}

/// The modules of a folder that a module of the same folder imports. `own` is the name of the importing module, and
/// `depth` is the number of folders between its file and the folder.
fn imports(code: &str, folder: &str, own: &str, depth: usize, modules: &BTreeSet<String>) -> BTreeSet<String> {
    let up = "super::".repeat(if own == "mod" { 0 } else { depth + 1 });
    let down = if own == "mod" { vec!["self::".to_owned()] } else { vec![up] };
    let absolute = format!("crate::{}::", folder.replace('/', "::"));
    let mut found = BTreeSet::new();
    for prefix in down.into_iter().chain([absolute]) {
        for at in words(code, &prefix) {
            let before = code[..at].trim_end();
            // Skip a re-export, and a path that continues a longer path: these do not import from this folder.
            if before.ends_with("pub use") || before.ends_with("super::") || before.ends_with("crate::") {
                continue;
            }
            for name in members(&code[at + prefix.len()..]) {
                let module = if modules.contains(name) { name } else { "mod" };
                if module != own {
                    found.insert(module.to_owned());
                }
            }
        }
    }
    found
}

/// The first name of a path. If the path is a group, the first name of each of its members.
fn members(path: &str) -> Vec<&str> {
    let Some(group) = path.strip_prefix('{') else { return vec![ident(path)] };
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (i, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                found.push(ident(&group[start..i]));
                start = i + 1;
                if c == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    found.retain(|name| !name.is_empty());
    found
}

/// The circles of a graph: its strongly connected components of more than one node.
fn circles(graph: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reach = |from: &str| {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(node) = todo.pop() {
            todo.extend(graph.get(&node).into_iter().flatten().filter(|next| seen.insert((*next).clone())).cloned());
        }
        seen
    };
    let reachable: BTreeMap<&String, BTreeSet<String>> = graph.keys().map(|node| (node, reach(node))).collect();
    let mut found: BTreeSet<Vec<String>> = BTreeSet::new();
    for (node, below) in &reachable {
        if below.contains(*node) {
            let circle = below.iter().filter(|other| reachable.get(other).is_some_and(|back| back.contains(*node)));
            found.insert(circle.cloned().collect());
        }
    }
    found.into_iter().filter(|circle| circle.len() > 1).collect()
}

/// The number of assertions in a file's code, and the number of lines that are not blank.
fn assertions(code: &str) -> (usize, usize) {
    let kinds = [
        "assert!",
        "assert_eq!",
        "assert_ne!",
        "debug_assert!",
        "debug_assert_eq!",
        "debug_assert_ne!",
        "unreachable!",
    ];
    let asserted: usize = kinds.iter().map(|kind| words(code, kind).count()).sum();
    let expected = code.matches(".expect(").count();
    (asserted + expected, code.lines().filter(|line| !line.trim().is_empty()).count())
}

/// Whether a file holds only tests.
fn is_test(path: &Path) -> bool {
    let only = ["tests.rs", "testing.rs", "stub.rs", "golden.rs"];
    path.iter().any(|part| part == "tests" || only.iter().any(|name| part == *name))
}

#[test]
fn only_the_registry_names_an_index() {
    let files = read(CODE[0], "rs");
    let folder = |path: &Path| Some(path.strip_prefix("index").ok()?.parent()?.iter().next()?.to_str()?.to_owned());
    let indexes: BTreeSet<String> = files.keys().filter_map(|path| folder(path)).collect();
    let indexes: Vec<String> = indexes.into_iter().filter(|name| !SHARED.contains(&name.as_str())).collect();
    assert!(indexes.len() >= 2, "{indexes:?}");
    let complaint = |(path, text): (&std::path::PathBuf, &String)| {
        let code = code_only(text);
        let named = named_indexes(path, &code, &indexes).into_iter();
        named.map(|(line, index)| format!("{}:{line}: names `{index}`", path.display())).collect::<Vec<_>>()
    };
    assert_none(files.iter().flat_map(complaint).collect());
}

#[test]
fn modules_of_a_folder_do_not_import_in_circles() {
    let files = read(CODE[0], "rs");
    let mut folders: BTreeSet<String> = BTreeSet::new();
    for path in files.keys() {
        folders.extend(
            path.ancestors().skip(1).filter_map(Path::to_str).filter(|name| !name.is_empty()).map(str::to_owned),
        );
    }
    let mut complaints = Vec::new();
    for folder in &folders {
        let below: Vec<_> =
            files.iter().filter_map(|(path, text)| Some((path.strip_prefix(folder).ok()?, text))).collect();
        let module =
            |path: &Path| path.iter().next().and_then(|part| part.to_str()).unwrap().trim_end_matches(".rs").to_owned();
        let modules: BTreeSet<String> = below.iter().map(|(path, _)| module(path)).collect();
        let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (path, text) in below.iter().filter(|(path, _)| !is_test(path)) {
            let own = module(path);
            let inner = path.iter().count() - 1 - usize::from(path.ends_with("mod.rs") && path.iter().count() > 1);
            let code = code_only(text);
            graph.entry(own.clone()).or_default().extend(imports(without_tests(&code), folder, &own, inner, &modules));
        }
        for circle in circles(&graph) {
            let known = CIRCLES
                .iter()
                .any(|(of, names)| of == folder && circle.iter().all(|name| names.contains(&name.as_str())));
            if !known {
                complaints.push(format!("{folder}: {}", circle.join(" ↔ ")));
            }
        }
    }
    assert_none(complaints);
}

#[test]
fn code_asserts_often_enough() {
    let mut sums: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (path, text) in read(CODE[0], "rs").iter().filter(|(path, _)| !is_test(path)) {
        let code = code_only(text);
        let (asserted, lines) = assertions(without_tests(&code));
        let folder = path.iter().next().unwrap().to_string_lossy().into_owned();
        let sum = sums.entry(folder).or_default();
        *sum = (sum.0 + asserted, sum.1 + lines);
    }
    let (asserted, lines) = sums.values().fold((0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1));
    let each = sums.iter().map(|(folder, (asserted, lines))| format!("{folder} {} of {lines}", asserted));
    let words = each.collect::<Vec<_>>().join(", ");
    println!("{asserted} assertions in {lines} lines: {words}");
    assert!(asserted * 1000 >= LEAST_ASSERTIONS * lines, "{asserted} assertions in {lines} lines: {words}");
}

#[test]
fn these_rules_find_what_breaks_them() {
    let indexes = ["stbe".to_owned()];
    let named = |path: &str, code: &str| named_indexes(Path::new(path), code, &indexes).len();
    assert_eq!(named("store/open.rs", "use crate::index::stbe::TYPE;"), 1);
    assert_eq!(named("index/stbe/read.rs", "use crate::index::stbe::node;"), 0);
    assert_eq!(named("index/registry.rs", "pub static TYPES: [&T; 1] = [&super::stbe::TYPE];"), 0);
    assert_eq!(named("index/registry.rs", "fn f() { super::stbe::f() }"), 1);
    let modules = ["a", "b", "mod"].map(str::to_owned).into();
    let of =
        |code: &str, own: &str, depth| imports(code, "store", own, depth, &modules).into_iter().collect::<Vec<_>>();
    assert_eq!(of("use super::{a::X, Engine};", "b", 0), ["a", "mod"]);
    assert_eq!(of("use super::super::a::X; use super::y;", "b", 1), ["a"]);
    assert_eq!(of("use crate::store::b::X;", "a", 0), ["b"]);
    assert_eq!(of("pub use self::a::X; use self::b::Y;", "mod", 0), ["b"]);
    let graph = |edges: &[(&str, &str)]| {
        let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, to) in edges {
            graph.entry((*from).into()).or_default().insert((*to).into());
        }
        circles(&graph)
    };
    assert!(graph(&[("a", "b"), ("b", "c"), ("a", "c")]).is_empty());
    assert_eq!(graph(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]), [["a", "b", "c"]]);
    assert_eq!(assertions("assert!(x);\n\nlet y = z.expect();\ndebug_assert_eq!(a, b);"), (3, 3));
}
