//! Tests `pando bench` as a process: result lines, table, report, misuse.

use crate::common::{Place, Run, run};

/// The arguments of a short bench in the directory of the test.
fn bench(place: &Place, more: &[&str]) -> Vec<String> {
    let store = place.path("bench");
    let fixed = ["bench", "--records", "2000", "--seconds", "0.2", "--memory-budget", "1MiB", "--store"];
    let all = fixed.iter().copied().chain([store.to_str().unwrap()]).chain(more.iter().copied());
    all.map(str::to_owned).collect()
}

fn run_owned(args: &[String]) -> Run {
    run(&args.iter().map(String::as_str).collect::<Vec<_>>(), b"")
}

#[test]
fn a_result_line_has_all_fields() {
    let place = Place::new();
    let out = run_owned(&bench(&place, &["--workloads", "load,a,e", "--threads", "2", "--json"])).ok();
    let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().map(|line| line["workload"].as_str().unwrap()).collect::<Vec<_>>(), ["load", "a", "e"]);
    for line in &lines {
        for name in
            ["index", "mode", "threads", "ops", "seconds", "ops_per_s", "write_amplification", "read_bytes_per_op"]
        {
            assert!(!line[name].is_null(), "{name} is missing");
        }
        for name in ["space_amplification", "peak_rss_bytes", "commit", "machine", "asked", "series", "inside"] {
            assert!(!line[name].is_null(), "{name} is missing");
        }
        for name in ["p50_us", "p99_us", "p99_9_us", "p99_99_us", "max_us"] {
            assert!(line["latency"][name].as_f64().unwrap() > 0.0, "{name} is missing");
        }
        assert_eq!((line["index"].as_str(), line["wrong_answers"].as_u64()), (Some("stbe"), Some(0)));
    }
    assert_eq!(lines[0]["ops"], 2000);
}

#[test]
fn a_report_is_made_from_result_lines() {
    let place = Place::new();
    let (lines, page, pictures) = (place.path("run.jsonl"), place.path("report.html"), place.path("pictures"));
    let [lines, page, pictures] = [&lines, &page, &pictures].map(|path| path.to_str().unwrap());
    let table = run_owned(&bench(&place, &["--workloads", "load,c", "-o", lines])).ok();
    assert_eq!(table.lines().count(), 3, "a head and a row for each workload: {table}");
    run_owned(&bench(&place, &["--workloads", "load,c", "-o", lines])).ok();
    let table = run(&["bench", "report", lines, "-o", page, "--svg", pictures], b"").ok();
    assert!(table.contains("c, 1 thread (2 rounds)"), "{table}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && page.trim_end().ends_with("</html>"));
    let svgs = std::fs::read_dir(pictures).unwrap().count();
    assert!(svgs >= 4);
    let png = run(&["bench", "report", lines, "--png", pictures], b"");
    if cfg!(feature = "png") {
        png.ok();
        assert_eq!(std::fs::read_dir(pictures).unwrap().count(), 2 * svgs);
    } else {
        assert!(png.fails(2).contains("--features png"), "the error names the feature");
    }
}

#[test]
fn invalid_arguments_are_exit_code_2() {
    let place = Place::new();
    let store = place.path("bench");
    for (args, code, word) in [
        (&["--workloads", "load,fly"][..], 2, "fly"),
        (&["--seconds", "nan"], 2, "seconds"),
        (&["--rate", "0"], 2, "rate"),
        (&["--value-len", "0"], 2, "value-len"),
        (&["--key-len", "7"], 2, "key-len"),
        (&["--memory-budget", "1KiB", "--records", "10"], 2, "memory_budget"),
    ] {
        let words = [&["bench", "--store", store.to_str().unwrap()], args].concat();
        assert!(run(&words, b"").fails(code).contains(word), "{args:?}");
    }
    let no_lines = place.path("no.jsonl");
    std::fs::write(&no_lines, "{}\nnonsense\n").unwrap();
    assert!(run(&["bench", "report", no_lines.to_str().unwrap()], b"").fails(2).contains("2"));
    assert!(run(&["bench", "--list"], b"").ok().contains("delete-scan"));
}
