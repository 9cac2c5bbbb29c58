//! Groups lines of results for comparison, in cases, entries and rounds.
//!
//! A case is a workload with its settings. An entry is one engine in a case. The rounds of an entry are the lines that
//! repeat its measurement. Refused lines are kept separately, because they have no results.

use std::collections::{BTreeMap, BTreeSet};

use crate::line::{Asked, Line};
use crate::plot::unit;
use crate::workload::{Kind, Workload};

/// All lines, grouped.
pub(super) struct Sheet<'a> {
    pub lines: &'a [Line],
    /// The engines that were measured or refused: PandoDB first, the others by name. The position of an engine in this
    /// list determines the engine's colour in all plots.
    pub whos: Vec<String>,
    /// The cases, in the order of their workloads in the lines. Cases of one workload are sorted by the number of
    /// threads.
    pub cases: Vec<Case<'a>>,
    /// The settings that all cases have in common, as (name, value).
    pub common: Vec<(&'static str, String)>,
}

/// A workload with its settings, and the engines that ran it.
pub(super) struct Case<'a> {
    pub workload: &'a str,
    pub threads: usize,
    pub asked: &'a Asked,
    /// The label, such as `read-random, 4 threads`, with the settings that distinguish the case from other cases of the
    /// workload.
    pub label: String,
    /// The unique name of the case for anchors and file names.
    pub slug: String,
    /// The entries, in the order of [`Sheet::whos`].
    pub entries: Vec<Entry<'a>>,
}

/// One engine in one case.
pub(super) struct Entry<'a> {
    pub who: String,
    /// The index in [`Sheet::whos`].
    pub ink: usize,
    /// The lines of the rounds. This list is never empty.
    pub rounds: Vec<&'a Line>,
}

/// A value over several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub median: f64,
    pub low: f64,
    pub high: f64,
    /// The number of rounds with the value.
    pub rounds: usize,
}

impl<'a> Sheet<'a> {
    pub fn new(lines: &'a [Line]) -> Sheet<'a> {
        let whos: BTreeSet<(bool, String)> = lines.iter().map(|line| (line.engine != "pando", line.who())).collect();
        let whos: Vec<String> = whos.into_iter().map(|(_, who)| who).collect();
        let mut cases: Vec<Case<'a>> = Vec::new();
        for line in lines.iter().filter(|line| line.refused.is_none()) {
            let same = |case: &Case| {
                case.workload == line.workload && case.threads == line.threads && *case.asked == line.asked
            };
            let at = cases.iter().position(same).unwrap_or_else(|| {
                cases.push(Case::new(line));
                cases.len() - 1
            });
            cases[at].add(line, &whos);
        }
        let mut order: Vec<&str> = Vec::new();
        for case in &cases {
            if !order.contains(&case.workload) {
                order.push(case.workload);
            }
        }
        cases.sort_by_key(|case| (order.iter().position(|workload| *workload == case.workload), case.threads));
        let common = alike(cases.iter().map(|case| (case.workload, case.asked)));
        name(&mut cases);
        Sheet { lines, whos, cases, common }
    }

    /// All refusals as (engine, workload, reason), each only once.
    pub fn refusals(&self) -> Vec<(String, String, String)> {
        let mut seen = Vec::new();
        for line in self.lines {
            let Some(reason) = &line.refused else { continue };
            let threads = if line.threads > 1 { format!(" ({} threads)", line.threads) } else { String::new() };
            let refusal = (line.who(), format!("{}{threads}", line.workload), reason.clone());
            if !seen.contains(&refusal) {
                seen.push(refusal);
            }
        }
        seen
    }

    /// The reason why `who` refused this case, if it did.
    pub fn refusal(&self, case: &Case, who: &str) -> Option<&'a str> {
        let lines = self.lines.iter().filter(|line| line.workload == case.workload && line.who() == who);
        let same = |line: &&Line| line.threads == case.threads || line.threads == 0;
        lines.filter(same).find_map(|line| line.refused.as_deref())
    }

    /// All entries with wrong answers.
    pub fn wrong(&self) -> Vec<(&Case<'a>, &Entry<'a>)> {
        let all = self.cases.iter().flat_map(|case| case.entries.iter().map(move |entry| (case, entry)));
        all.filter(|(_, entry)| entry.wrong().0 > 0).collect()
    }
}

impl<'a> Case<'a> {
    fn new(line: &'a Line) -> Case<'a> {
        Case {
            workload: &line.workload,
            threads: line.threads,
            asked: &line.asked,
            label: String::new(),
            slug: String::new(),
            entries: Vec::new(),
        }
    }

    fn add(&mut self, line: &'a Line, whos: &[String]) {
        let who = line.who();
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.who == who) {
            entry.rounds.push(line);
            return;
        }
        let ink = whos.iter().position(|known| *known == who).expect("every engine is in whos");
        self.entries.push(Entry { who, ink, rounds: vec![line] });
        self.entries.sort_by_key(|entry| entry.ink);
    }

    pub fn entry(&self, who: &str) -> Option<&Entry<'a>> {
        self.entries.iter().find(|entry| entry.who == who)
    }

    /// The best comparable rate of all engines except the engine `who`. The function leaves out engines with wrong answers and
    /// engines whose writes do not survive a kill.
    ///
    /// An engine that got the memory of a rival is compared with this rival alone, and no engine is compared with it.
    pub fn best_other(&self, who: &str) -> Option<f64> {
        if let Some(rival) =
            self.entry(who).map(|entry| entry.rounds[0].matched.as_str()).filter(|rival| !rival.is_empty())
        {
            let rate = self.entries.iter().find(|entry| entry.who == rival).and_then(Entry::rate)?;
            return Some(rate.median).filter(|rate| *rate > 0.0);
        }
        let apart = |entry: &&Entry| entry.rounds.iter().any(|line| line.apart || !line.matched.is_empty());
        let others = self.entries.iter().filter(|entry| entry.who != who && !apart(entry)).filter_map(Entry::rate);
        others.map(|rate| rate.median).filter(|rate| *rate > 0.0).max_by(f64::total_cmp)
    }

    /// The number of rounds as text, such as `3 rounds`; empty for one round.
    pub fn rounds_note(&self) -> String {
        let fewest = self.entries.iter().map(|entry| entry.rounds.len()).min().unwrap_or(0);
        match (fewest, self.rounds()) {
            (_, 0 | 1) => String::new(),
            (fewest, most) if fewest == most => format!("{most} rounds"),
            (fewest, most) => format!("{fewest} to {most} rounds"),
        }
    }

    /// The maximum number of rounds of an entry.
    pub fn rounds(&self) -> usize {
        self.entries.iter().map(|entry| entry.rounds.len()).max().unwrap_or(0)
    }
}

impl Entry<'_> {
    /// A value over the rounds, or `None` if the value is not finite in any round.
    pub fn spread(&self, figure: impl Fn(&Line) -> f64) -> Option<Spread> {
        let mut values: Vec<f64> =
            self.rounds.iter().map(|line| figure(line)).filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let (low, high) = (*values.first()?, *values.last()?);
        Some(Spread { median: (values[(n - 1) / 2] + values[n / 2]) / 2.0, low, high, rounds: n })
    }

    /// The rate for comparisons, or `None` if an answer was wrong.
    pub fn rate(&self) -> Option<Spread> {
        if self.wrong().0 > 0 { None } else { self.spread(Line::fair_ops_per_s) }
    }

    /// The round with the median rate, which is shown by plots over time. If the number of rounds is even, this is the
    /// lower of the two middle rounds.
    pub fn middle(&self) -> &Line {
        let mut rounds = self.rounds.clone();
        rounds.sort_by(|a, b| a.fair_ops_per_s().total_cmp(&b.fair_ops_per_s()));
        rounds[(rounds.len() - 1) / 2]
    }

    /// The name for legends, with a remark if answers were wrong.
    pub fn label(&self) -> String {
        if self.wrong().0 > 0 { format!("{} (wrong answers)", self.who) } else { self.who.clone() }
    }

    /// The number of wrong answers and the number of checked answers in all rounds.
    pub fn wrong(&self) -> (u64, u64) {
        self.rounds.iter().fold((0, 0), |(wrong, checked), line| {
            (wrong.saturating_add(line.wrong_answers), checked.saturating_add(line.checked_answers))
        })
    }
}

impl Spread {
    /// The spread as text, such as `118 k … 130 k`. Empty for one round, or if both ends have the same text.
    pub fn note(&self, unit: &str) -> String {
        let [low, high] = [self.low, self.high].map(|end| unit::show(end, unit));
        if self.rounds < 2 || low == high { String::new() } else { format!("{low} … {high}") }
    }
}

/// The settings that affect the workload, as (name, value).
pub(super) fn asked_fields(workload: &str, asked: &Asked) -> Vec<(&'static str, String)> {
    // For an unknown workload, all settings are shown.
    let known = Workload::find(workload);
    let is_told = |name: &str| match name {
        "hot customers" => asked.hot > 0,
        "warehouses" => asked.warehouses > 0,
        "distribution" => known.is_none_or(Workload::picks_rows),
        "sequential" => known.is_none_or(|workload| workload.kind == Kind::LoadMixed),
        _ => true,
    };
    let mut fields = all_asked_fields(asked);
    fields.retain(|(name, _)| is_told(name));
    fields
}

fn all_asked_fields(asked: &Asked) -> Vec<(&'static str, String)> {
    let rate =
        if asked.rate > 0.0 { format!("{}/s offered", unit::count(asked.rate)) } else { "closed loop".to_owned() };
    let zeros =
        if asked.zeros > 0.0 { format!(", {} of it zeros", unit::show(asked.zeros, "%")) } else { String::new() };
    let value = format!("{} B{zeros}", asked.value_len);
    vec![
        ("records", unit::count(asked.records as f64)),
        ("key", format!("{} B", asked.key_len)),
        ("value", value),
        ("distribution", asked.dist.clone()),
        ("budget", unit::show(asked.memory_budget as f64, "B")),
        ("cache", asked.cache.clone()),
        ("rate", rate),
        ("sequential", unit::show(asked.seq_share, "%")),
        ("deterministic", if asked.deterministic { "yes" } else { "no" }.to_owned()),
        ("seed", asked.seed.to_string()),
        ("hot customers", unit::count(asked.hot as f64)),
        ("warehouses", unit::count(asked.warehouses as f64)),
    ]
}

/// The settings that are the same in all cases.
fn alike<'b>(all: impl Iterator<Item = (&'b str, &'b Asked)>) -> Vec<(&'static str, String)> {
    let mut common: Option<Vec<(&'static str, String)>> = None;
    for (workload, asked) in all {
        let fields = asked_fields(workload, asked);
        common = Some(match common {
            None => fields,
            Some(common) => common.into_iter().filter(|field| fields.contains(field)).collect(),
        });
    }
    common.unwrap_or_default()
}

/// Sets the label and the slug of every case.
fn name(cases: &mut [Case]) {
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    let workloads: Vec<(&str, &Asked)> = cases.iter().map(|case| (case.workload, case.asked)).collect();
    for case in cases.iter_mut() {
        let same = alike(workloads.iter().copied().filter(|(workload, _)| *workload == case.workload));
        let own = asked_fields(case.workload, case.asked).into_iter().filter(|field| !same.contains(field));
        let own: String = own.map(|(name, value)| format!(", {name} {value}")).collect();
        let s = if case.threads == 1 { "" } else { "s" };
        case.label = format!("{}, {} thread{s}{own}", case.workload, case.threads);
        let slug = slug(&case.label);
        let n = taken.entry(slug.clone()).or_insert(0);
        *n += 1;
        case.slug = if *n > 1 { format!("{slug}-{n}") } else { slug };
    }
}

/// Converts text to a name of letters, digits and single hyphens.
fn slug(text: &str) -> String {
    let mut slug = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() {
            slug.push(c.to_ascii_lowercase());
        } else if !slug.ends_with('-') {
            slug.push('-');
        }
    }
    slug.trim_matches('-').to_owned()
}
