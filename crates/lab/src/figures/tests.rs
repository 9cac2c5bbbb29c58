//! Runs all figures at a tiny scale, and checks that every claim has a value or a reason. No test depends on measured
//! times.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use super::run::Given;
use super::show::needs_rival;
use super::*;
use crate::engine::Mode;
use crate::line::Line;

fn tiny(directory: &Path) -> Scale {
    Scale {
        records: Some(3000),
        memory_budget: Some(1 << 20),
        threads: vec![1, 2],
        seconds: 5.0,
        probe_bytes: 2 << 20,
        probe_time: Duration::from_millis(20),
        directory: directory.to_owned(),
        ..Scale::default()
    }
}

fn measured(figure: &'static Figure, scale: &Scale) -> Results {
    let mut lines: Vec<Line> = Vec::new();
    let results = run(figure, scale, Given::default(), &mut lines).unwrap();
    assert_eq!(lines.len(), results.lines.len(), "all lines of the results were passed to the observer");
    results
}

#[test]
fn the_list_is_complete_and_every_claim_names_its_section() {
    let ids: Vec<&str> = ALL.iter().map(|figure| figure.id).collect();
    let expected = ["3.1", "3.3a", "3.3b", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9", "3.10"];
    let of_002 = expected.iter().map(|number| format!("002-{number}"));
    assert_eq!(ids, of_002.chain((4..=9).map(|number| format!("001-{number}"))).collect::<Vec<_>>());
    for figure in ALL {
        assert_eq!(Figure::find(figure.id).map(|found| found.id), Some(figure.id));
        let document = &figure.id[..3];
        assert!(
            figure.source.starts_with(&format!("{document} §"))
                && !figure.setup.is_empty()
                && !figure.missing.is_empty()
        );
        let whats: BTreeSet<&str> = figure.claims.iter().map(|claim| claim.what).collect();
        assert_eq!(whats.len(), figure.claims.len(), "{}: no claim twice", figure.id);
        assert!(figure.claims.iter().all(|claim| claim.from.starts_with('§')), "{}", figure.id);
        assert!(figure.claims.iter().any(|claim| !needs_rival(claim)) || figure.id == "002-3.3b");
        assert!(show::list().contains(figure.title));
    }
    assert!(Figure::find("002-9.9").is_none());
}

#[test]
fn every_figure_runs_and_has_a_value_for_each_claim_without_a_rival() {
    let dir = tempfile::tempdir().unwrap();
    for &figure in ALL {
        let results = measured(figure, &tiny(dir.path()));
        assert!(results.lines.iter().all(|line| line.wrong_answers == 0 && line.ops > 0), "{}", figure.id);
        for claim in figure.claims {
            let answer = (claim.measure)(&results);
            let what = format!("{}, {}: {answer:?}", figure.id, claim.what);
            match &answer {
                Ok(value) => assert!(value.is_finite() && *value >= 0.0, "{what}"),
                // With one core, a speed-up cannot be measured.
                Err(why) if why.contains("needs one thread and several") => {}
                Err(why) => assert!(needs_rival(claim) && why.starts_with("needs lines of "), "{what}"),
            }
            assert_eq!(show::verdict(claim, &answer) == "–", answer.is_err() || matches!(claim.paper, Paper::Says(_)));
        }
        let text = show::text(std::slice::from_ref(&results));
        assert!(text.contains("product mode") && text.contains("of the paper's"), "{text}");
        assert_eq!(show::json(&results)["claims"].as_array().unwrap().len(), figure.claims.len());
        for (name, plot) in show::plots(&results) {
            assert!(plot.has_data() && name.starts_with(figure.id), "{name}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{}: nothing is left behind", figure.id);
    }
}

#[test]
fn both_modes_are_shown_in_columns() {
    let dir = tempfile::tempdir().unwrap();
    let figure = Figure::find("002-3.4").unwrap();
    let product = measured(figure, &tiny(dir.path()));
    let paper = measured(figure, &Scale { mode: Mode::Paper, ..tiny(dir.path()) });
    assert_eq!(paper.whos(), ["pando-stbe-paper"]);
    let ours = figure.claims.iter().filter(|claim| !needs_rival(claim));
    assert!(ours.clone().all(|claim| (claim.measure)(&product).is_ok() && (claim.measure)(&paper).is_ok()));
    let text = show::text(&[product, paper]);
    assert!(
        text.contains("product mode") && text.contains("paper mode") && text.contains("pando-stbe-paper load"),
        "{text}"
    );
}

#[test]
fn given_lines_are_used_where_they_fit_a_step() {
    let dir = tempfile::tempdir().unwrap();
    let scale = tiny(dir.path());
    let figure = Figure::find("002-3.4").unwrap();
    let mut lines = measured(figure, &scale).lines;
    let rival = |line: &Line| Line { engine: "rocksdb".into(), index: String::new(), ..line.clone() };
    let other = Line { threads: 77, ..rival(&lines[0]) };
    lines.extend([rival(&lines[0]), rival(&lines[1]), other]);
    let results = run(figure, &scale, Given { lines, only: true }, &mut Vec::<Line>::new()).unwrap();
    assert_eq!((results.lines.len(), results.set_aside), (4, 1));
    for claim in figure.claims {
        let answer = (claim.measure)(&results);
        assert!(answer.is_ok(), "{}: {answer:?}", claim.what);
        assert!(!claim.what.contains("RocksDB") || answer == Ok(1.0), "the same lines: {answer:?}");
    }
    assert_eq!(results.whos(), [OURS, "rocksdb"]);
}

#[test]
fn verdicts_depend_on_the_direction_of_the_claim() {
    let claim = |paper, judge| Claim { what: "", paper, unit: "", from: "", judge, measure: |_| Ok(0.0) };
    for (paper, judge, value, word) in [
        (Paper::Is(2.0), Judge::More, 3.0, "holds: 1.5 × of the paper's"),
        (Paper::Is(2.0), Judge::More, 1.9, "nearly holds: 0.95 × of the paper's"),
        (Paper::Is(2.0), Judge::More, 1.0, "does not hold: 0.5 × of the paper's"),
        (Paper::Is(2.0), Judge::Less, 1.0, "holds: 0.5 × of the paper's"),
        (Paper::AtMost(2.0), Judge::Less, 4.0, "does not hold: 2 × of the paper's"),
        (Paper::Between(6.0, 28.0), Judge::More, 7.0, "holds"),
        (Paper::Between(6.0, 28.0), Judge::Machine, 3.0, "0.5 × of the paper's"),
        (Paper::Between(6.0, 28.0), Judge::Machine, 7.0, "within"),
        (Paper::Says("impossible"), Judge::More, 7.0, "–"),
    ] {
        assert_eq!(show::verdict(&claim(paper, judge), &Ok(value)), word);
    }
    assert_eq!(show::verdict(&claim(Paper::Is(1.0), Judge::More), &Err("why".into())), "–");
}
