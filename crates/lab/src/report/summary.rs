//! The overview before the results: machine and settings, wrong answers, refusals, and differences between the lines.

use std::collections::{BTreeMap, BTreeSet};

use super::group::Sheet;
use super::tables::{Cell, Table};
use crate::line::Machine;
use crate::plot::unit;

/// The facts about the whole report, as (name, value).
pub(super) fn facts(sheet: &Sheet) -> Vec<(String, String)> {
    let distinct = |values: BTreeSet<String>| values.into_iter().collect::<Vec<_>>().join("; ");
    let measured = || sheet.lines.iter().filter(|line| line.refused.is_none());
    let times = || sheet.lines.iter().map(|line| line.at).filter(|at| *at > 0);
    let mut facts = vec![
        ("Machine".to_owned(), distinct(measured().map(|line| machine(&line.machine)).collect())),
        ("Commit".to_owned(), distinct(commits(sheet))),
        ("Contents".to_owned(), contents(measured().count(), sheet.refusals().len())),
    ];
    if let (Some(first), Some(last)) = (times().min(), times().max()) {
        let (first, last) = (date(first), date(last));
        let span = if first == last { first } else { format!("{first} … {last}") };
        facts.push(("Measured".to_owned(), format!("{span} UTC")));
    }
    if !sheet.common.is_empty() {
        let common: Vec<String> = sheet.common.iter().map(|(name, value)| format!("{name} {value}")).collect();
        facts.push(("Asked of all".to_owned(), common.join(", ")));
    }
    facts
}

/// The number of lines as text, such as "10 measurements".
fn contents(measured: usize, refused: usize) -> String {
    let s = |n: usize| if n == 1 { "" } else { "s" };
    let refused = match refused {
        0 => String::new(),
        n => format!(", and {n} workload{} that {} refused", s(n), if n == 1 { "was" } else { "were" }),
    };
    format!("{measured} measurement{}{refused}", s(measured))
}

fn commits(sheet: &Sheet) -> BTreeSet<String> {
    sheet.lines.iter().map(|line| line.commit.clone()).filter(|commit| !commit.is_empty()).collect()
}

fn machine(machine: &Machine) -> String {
    let memory = unit::show(machine.memory_bytes as f64, "B");
    let Machine { cpu, cores, system, file_system, .. } = machine;
    format!("{cpu}, {cores} processors, {memory}, {system}, {file_system}")
}

/// A sentence for each entry with wrong answers.
pub(super) fn wrong(sheet: &Sheet) -> Vec<String> {
    let sentence = |(case, entry): (&super::group::Case, &super::group::Entry)| {
        let (wrong, checked) = entry.wrong();
        format!("{}: {wrong} of {checked} checked answers were wrong in {}", entry.who, case.label)
    };
    sheet.wrong().into_iter().map(sentence).collect()
}

/// A sentence for each difference between the lines that makes their results hard to compare.
pub(super) fn doubts(sheet: &Sheet) -> Vec<String> {
    let mut doubts = Vec::new();
    let machines: BTreeSet<String> =
        sheet.lines.iter().filter(|line| line.refused.is_none()).map(|line| machine(&line.machine)).collect();
    if machines.len() > 1 {
        doubts.push(format!("The lines come from {} different machines.", machines.len()));
    }
    if commits(sheet).len() > 1 {
        doubts.push(format!("The lines come from {} different commits.", commits(sheet).len()));
    }
    for case in &sheet.cases {
        let lines = || case.entries.iter().flat_map(|entry| &entry.rounds);
        let streams: BTreeSet<&str> =
            lines().map(|line| line.stream.as_str()).filter(|hash| !hash.is_empty()).collect();
        if streams.len() > 1 {
            doubts.push(format!("{}: the engines were not given the same operations.", case.label));
        }
        for entry in case.entries.iter().filter(|entry| entry.rounds.len() > 1) {
            if entry.rounds.iter().any(|line| line.configuration != entry.rounds[0].configuration) {
                doubts.push(format!("{}: rounds of {} differ in their configuration.", case.label, entry.who));
            }
        }
    }
    doubts
}

/// All refusals with their reasons.
pub(super) fn refusals(sheet: &Sheet) -> Option<Table> {
    let row = |(who, workload, reason)| vec![Cell::new(who), Cell::new(workload), Cell::new(reason).class("words")];
    let rows: Vec<Vec<Cell>> = sheet.refusals().into_iter().map(row).collect();
    let head = ["who", "workload", "why"].map(str::to_owned).to_vec();
    (!rows.is_empty()).then(|| Table { caption: "Refused".into(), head, rows })
}

/// A table of the configurations, with a row for each setting and a column for each engine. Settings with different
/// values come first and are marked. If a setting had several values for an engine, all values are listed.
pub(super) fn configuration(sheet: &Sheet) -> Option<Table> {
    let mut settings: BTreeMap<&str, BTreeMap<String, BTreeSet<&str>>> = BTreeMap::new();
    for line in sheet.lines {
        for (name, value) in &line.configuration {
            settings.entry(name).or_default().entry(line.who()).or_default().insert(value);
        }
    }
    let differs =
        |by_who: &BTreeMap<String, BTreeSet<&str>>| by_who.values().flatten().collect::<BTreeSet<_>>().len() > 1;
    let mut order: Vec<(&&str, &BTreeMap<String, BTreeSet<&str>>)> = settings.iter().collect();
    order.sort_by_key(|(name, by_who)| (!differs(by_who), **name));
    let any = order.first().is_some_and(|(_, by_who)| differs(by_who));
    let rows: Vec<Vec<Cell>> = order
        .into_iter()
        .map(|(name, by_who)| {
            let values = sheet.whos.iter().map(|who| {
                let values = by_who.get(who).map(|values| values.iter().copied().collect::<Vec<_>>().join(" | "));
                values.map_or(Cell::new("–").class("soft"), |text| Cell::new(text).class("words"))
            });
            let name = Cell::new(*name).class(if differs(by_who) { "differs" } else { "" });
            std::iter::once(name).chain(values).collect()
        })
        .collect();
    let head = std::iter::once("setting".to_owned()).chain(sheet.whos.iter().cloned()).collect();
    let caption = if any { "Configuration; settings that differ come first, marked ≠" } else { "Configuration" };
    let caption = caption.into();
    (!rows.is_empty()).then_some(Table { caption, head, rows })
}

/// Formats seconds since 1970 as `2026-11-21 16:16`, with Howard Hinnant's civil-from-days algorithm.
fn date(at: u64) -> String {
    let (days, seconds) = (at / 86_400, at % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", seconds / 3600, seconds / 60 % 60)
}

#[cfg(test)]
mod tests {
    #[test]
    fn seconds_are_converted_to_calendar_dates() {
        for (at, text) in [
            (0, "1970-01-01 00:00"),
            (951_782_399, "2000-02-28 23:59"),
            (951_868_800, "2000-03-01 00:00"),
            (1_795_277_776, "2026-11-21 16:16"),
        ] {
            assert_eq!(super::date(at), text);
        }
    }
}
