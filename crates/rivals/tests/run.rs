//! Runs the program: all workloads on the standard library's map and on PandoDB, PandoDB with the memory of the map, and
//! a resumed run.
#![cfg(feature = "btreemap")]

use std::path::Path;
use std::process::{Command, Output};

use pandodb_lab::line::Line;
use pandodb_lab::{report, workload};

const WORKLOADS: &str = "reverse-scan,hotspot-write,load-sorted,timeseries,bigval,secondary,mixed-size";
const MATCHED: &str = "pando-stbe with the memory of btreemap";

fn run(directory: &Path, more: &[&str]) -> Output {
    let out = directory.join("lines.jsonl");
    let mut program = Command::new(env!("CARGO_BIN_EXE_pando-rivals"));
    program.args([
        "run",
        "--engines",
        "pando-stbe,btreemap",
        "--records",
        "3000",
        "--memory",
        "16MiB",
        "--match-memory",
    ]);
    program.args(["--store".as_ref(), directory.as_os_str(), "--out".as_ref(), out.as_os_str()]);
    let output = program.args(more).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn lines(directory: &Path) -> Vec<Line> {
    report::read(&[directory.join("lines.jsonl")]).unwrap()
}

#[test]
fn all_new_workloads_run_and_a_run_can_be_resumed() {
    let directory = tempfile::tempdir().unwrap();
    run(directory.path(), &["--workloads", WORKLOADS]);
    let first = lines(directory.path());
    let by = |who: &str| first.iter().filter(|line| line.who() == who).collect::<Vec<_>>();
    // `load` is added for the workloads that need rows.
    let (ours, map, matched) = (by("pando-stbe"), by("btreemap"), by(MATCHED));
    assert_eq!((ours.len(), map.len(), matched.len()), (21, 21, 21));
    for (line, other) in ours.iter().zip(&map) {
        assert_eq!((line.refused.as_deref(), line.wrong_answers, other.wrong_answers), (None, 0, 0), "{line:?}");
        assert_eq!((&line.workload, &line.stream, line.ops), (&other.workload, &other.stream, other.ops));
        assert_eq!((line.asked.memory_budget, line.budget_bytes()), (16 << 20, 16 << 20));
    }
    // Each data set has processes of its own, so PandoDB gets the rival's peak with this data set.
    let set = |line: &Line| workload::Workload::find(&line.workload).unwrap().set;
    for line in matched {
        let peaks = map.iter().filter(|other| set(other) == set(line)).map(|other| other.engine_bytes());
        let peak = peaks.max().unwrap().max(16 << 20);
        assert_eq!((line.given_memory, line.wrong_answers), (peak, 0), "{}", line.workload);
    }

    let text = run(directory.path(), &["--workloads", WORKLOADS, "--resume"]);
    assert_eq!(lines(directory.path()).len(), first.len(), "no measurement is repeated");
    assert_eq!(String::from_utf8_lossy(&text.stderr).matches("already measured").count(), 3 * 6, "six data sets");
    let table = String::from_utf8_lossy(&text.stdout);
    assert!(table.contains(MATCHED) && table.contains("timeseries-hour"), "{table}");
    run(directory.path(), &["--workloads", WORKLOADS, "--resume", "--rounds", "2"]);
    assert_eq!(lines(directory.path()).len(), 2 * first.len(), "the second round is measured");
}
