//! Checks the structure of the report: required contents, and inputs that must not break the report.
//!
//! The page and the images of the sample are left in `target/tmp/report` for inspection.

use std::path::{Path, PathBuf};

use pandodb_lab::line::{Line, Series, TransactionFigures};
use pandodb_lab::plot::ImageFormat;
use pandodb_lab::report;

mod sample;

fn small(workload: &str, engine: &str, rate: f64) -> Line {
    let ops = vec![(rate / 10.0) as u64; 100];
    Line {
        workload: workload.into(),
        engine: engine.into(),
        threads: 1,
        ops: rate as u64 * 10,
        seconds: 10.0,
        ops_per_s: rate,
        series: Series { bucket_ms: 100, max_us: vec![50.0; 100], ops, ..Series::default() },
        ..Line::default()
    }
}

/// Checks that tags are closed in order, and that the page loads no other files and has no scripts.
fn check_page(html: &str) {
    const VOID: [&str; 1] = ["meta"];
    let mut open: Vec<&str> = Vec::new();
    let body = html.strip_prefix("<!DOCTYPE html>").expect("a page");
    for tag in body.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag ends");
        let name = tag.trim_start_matches('/').split([' ', '\n', '/']).next().expect("a name");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "closed out of order");
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
    }
    assert_eq!(open, [""; 0], "left open");
    let fetched = html.replace("http://www.w3.org/2000/svg", "");
    for forbidden in ["http:", "https:", "<script", "src=", "@import", "url(", "NaN", "inf"] {
        assert!(!fetched.contains(forbidden), "`{forbidden}` on the page: …{}…", around(&fetched, forbidden));
    }
}

fn around<'a>(text: &'a str, word: &str) -> &'a str {
    let at = text.find(word).unwrap_or(0);
    let (mut from, mut to) = (at.saturating_sub(60), (at + 60).min(text.len()));
    while !text.is_char_boundary(from) {
        from -= 1;
    }
    while !text.is_char_boundary(to) {
        to += 1;
    }
    &text[from..to]
}

/// Checks that no word of the table of costs has more than 14 characters, because the eleven columns of this table
/// would otherwise not fit on the page.
#[test]
fn words_in_the_table_of_costs_have_at_most_14_characters() {
    let html = report::html(&[small("a", "pando", 9e3), small("a", "pando", 8e3)]);
    let costs = html.split("aria-label=\"Costs\"").nth(1).expect("a table of costs");
    let costs = costs.split_once("</table>").expect("it ends").0;
    let texts: Vec<&str> = costs.split('>').filter_map(|part| part.split('<').next()).collect();
    assert!(texts.iter().any(|text| text.contains("acknowledged")), "{texts:?}");
    for text in texts {
        assert!(text.split(' ').all(|word| word.chars().count() <= 14), "{text}");
    }
}

#[test]
fn the_sample_has_everything() {
    let lines = sample::sample(60);
    let html = report::html(&lines);
    check_page(&html);
    assert_eq!(html, report::html(&lines), "the same lines, the same page");
    for expected in [
        "pando-stbe",
        "rocksdb",
        "fjall",
        "A Processor @ 2.5 GHz",
        "a1acdc3",
        "it has no deletion of ranges",
        "load-random, 4 threads",
        "3 rounds",
        "block_cache",
        "prefers-color-scheme: dark",
        "@media print",
        "Throughput over time: load-random, 1 thread",
        "Slowest operation over time",
        "Latency of all operations",
        "Latency of read",
        "Debt over time",
        "Memory over time",
        "budget",
        "Bytes written by cause",
        "compaction",
        "throughput (operations/s)",
        "time (s)",
        "latency (s)",
        "memory of the process (B)",
        "under half of the engine&#39;s own median",
        "idle thread",
    ] {
        assert!(html.contains(expected), "`{expected}` is missing");
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("report.html"), &html).expect("written");
    let few: Vec<Line> = lines.into_iter().filter(|line| line.threads == 4 || line.refused.is_some()).collect();
    for &format in ImageFormat::ALL {
        let paths = report::write_images(&few, &folder.join("plots"), format).expect("images");
        assert!(paths.len() >= 6 * 4, "{}", paths.len());
        let (start, least): (&[u8], usize) =
            if format == ImageFormat::Svg { (b"<svg", 1_000) } else { (b"\x89PNG", 5_000) };
        for path in &paths {
            let bytes = std::fs::read(path).expect("an image");
            assert!(bytes.starts_with(start) && bytes.len() > least, "{}", path.display());
        }
        for name in ["load-random-4-threads-throughput", "mixed-50-50-4-threads-latency-write"] {
            let name = format!("{name}.{}", format.extension());
            assert!(paths.iter().any(|path| path.ends_with(&name)), "{name} is not in {paths:?}");
        }
    }
}

#[test]
fn a_report_of_no_or_few_lines_is_valid() {
    check_page(&report::html(&[]));
    assert!(report::html(&[]).contains("There are no figures."));
    assert!(report::table(&[]).starts_with("| operations/s"));
    check_page(&report::html(&[Line::default()]));
    let one = [small("read", "redb", 5000.0)];
    check_page(&report::html(&one));
    assert!(!report::table(&one).contains("by the best other"), "no other engine to compare with");
    let refused = Line { refused: Some("no merge".into()), ..small("merge", "redb", 0.0) };
    let html = report::html(std::slice::from_ref(&refused));
    check_page(&html);
    assert!(html.contains("no merge") && !html.contains("<section"), "a refusal does not make a case");
    assert!(report::table(&[refused]).contains("redb refused merge: no merge"));
}

#[test]
fn refusals_are_shown_in_place_of_a_rate() {
    let refused = Line { refused: Some("no merge".into()), threads: 0, ..small("merge", "redb", 0.0) };
    let text = report::table(&[small("merge", "pando", 10_000.0), refused]);
    let row = text.lines().find(|row| row.contains("10 k")).expect("a row");
    assert!(row.contains("refused"), "{text}");
}

#[test]
fn names_are_escaped() {
    let evil = "<script>alert('&\"')</script>";
    let mut line = small(evil, evil, 100.0);
    line.index = evil.into();
    line.asked.dist = evil.into();
    line.machine.cpu = evil.into();
    line.commit = evil.into();
    line.configuration.insert(evil.into(), evil.into());
    line.inside.counters.insert(format!("written.{evil}"), 1 << 20);
    line.latency_by.insert(evil.into(), line.latency);
    line.latency_by.insert("\u{1}read".into(), line.latency);
    let refused = Line { refused: Some(evil.into()), ..line.clone() };
    let lines = [line, refused];
    let html = report::html(&lines);
    check_page(&html);
    assert!(html.contains("&lt;script&gt;alert(&#39;&amp;&quot;&#39;)"));
    let folder = tempfile::tempdir().expect("a folder");
    for &format in ImageFormat::ALL {
        let paths = report::write_images(&lines, folder.path(), format).expect("images in spite of the names");
        assert!(paths.iter().all(|path| path.parent() == Some(folder.path())), "{paths:?}");
    }
}

#[test]
fn rounds_give_a_median_and_a_spread() {
    let rounds = [small("read", "redb", 4000.0), small("read", "redb", 9000.0), small("read", "redb", 5000.0)];
    let html = report::html(&rounds);
    assert!(html.contains(">5 k<small>4\u{a0}k … 9\u{a0}k</small>"), "{}", around(&html, "3 rounds"));
    assert!(report::table(&rounds).contains("5 k ±50 %"));
    let other = small("read", "sled", 2500.0);
    let text = report::table(&[&rounds[..], &[other]].concat());
    assert!(text.contains("2.00×") && text.contains("0.50×"), "{text}");
    let mut apart = rounds.to_vec();
    apart[1].asked.memory_budget = 1 << 30;
    let html = report::html(&apart);
    assert!(
        html.contains("read, 1 thread, budget 1 GiB") && html.contains("budget 0 B"),
        "labels have the settings that differ"
    );
}

#[test]
fn a_page_of_one_engine_has_no_comparisons() {
    let mut lines = vec![small("queue", "pando", 4000.0), small("a", "pando", 9000.0), small("a", "pando", 8000.0)];
    for line in &mut lines {
        line.asked.dist = "uniform".into();
        line.configuration.insert("threads".into(), "2".into());
    }
    let html = report::html(&lines);
    check_page(&html);
    for word in ["best other", "in bold", "brackets", "not alike", "that differ", "≠</", "0 refused", "of figures"] {
        assert!(!html.contains(word), "`{word}`: {}", around(&html, word));
    }
    assert!(html.contains("3 measurements") && html.contains("Of several rounds"), "{}", around(&html, "measure"));
    // If each entry has one round, the report does not mention rounds.
    assert!(!report::html(&lines[..2]).contains("Of several rounds"));
    let refused = Line { refused: Some("no merge".into()), ..small("merge", "redb", 0.0) };
    let both = report::html(&[&lines[..], &[small("a", "redb", 10.0), refused]].concat());
    assert!(both.contains("4 measurements, and 1 workload that was refused"), "{}", around(&both, "measurements"));
    assert!(both.contains("best other") && both.contains("bold"));
}

#[test]
fn settings_without_effect_on_a_workload_are_not_shown() {
    let line = |workload: &str| {
        let mut line = small(workload, "pando", 4000.0);
        line.asked.dist = "uniform".into();
        line.asked.seq_share = 50.0;
        line
    };
    let section = |html: &str, id: &str| {
        let from = html.find(&format!("<section id=\"{id}")).expect("a section");
        html[from..].split("</section>").next().unwrap().to_owned()
    };
    // If the report has one workload, all settings are in the overview.
    let overview = |workload: &str| report::html(&[line(workload)]);
    for workload in ["queue", "load", "expiry", "delete"] {
        assert!(!overview(workload).contains("distribution"), "{workload} picks no rows");
    }
    assert!(overview("a").contains("distribution uniform") && !overview("a").contains("sequential"));
    assert!(overview("load-mixed").contains("sequential 50 %"));
    assert!(overview("another's").contains("distribution uniform"), "all settings of an unknown workload are shown");
    let html = report::html(&[line("queue"), line("a")]);
    assert!(
        section(&html, "a-").contains("distribution uniform") && !section(&html, "queue-").contains("distribution")
    );
}

#[test]
fn heads_name_their_units_and_explain_the_idle_thread() {
    let html = report::html(&[small("a", "pando", 4000.0)]);
    for head in ["CPU time for a million operations", "read for each operation", "Idle thread: "] {
        assert!(html.contains(head), "`{head}` is missing");
    }
    assert!(!html.contains("CPU/million") && !html.contains("oversleep of an idle thread"), "{}", around(&html, "CPU"));
}

#[test]
fn wrong_answers_are_reported_and_not_compared() {
    let wrong = Line { wrong_answers: 3, checked_answers: 1000, ..small("read", "redb", 9000.0) };
    let lines = [wrong, small("read", "sled", 2500.0), small("read", "pando", 1000.0)];
    let html = report::html(&lines);
    check_page(&html);
    assert!(html.contains("class=\"alarm\"") && html.contains("redb: 3 of 1000 checked answers were wrong"));
    assert!(html.contains("redb (wrong answers)"), "the legend mentions wrong answers");
    assert!(html.contains("2.5 k (2.50×)"), "compared with right answers only");
    let text = report::table(&lines);
    assert!(text.contains("WRONG ANSWERS: redb in read, 1 thread: 3 of 1000"), "{text}");
}

#[test]
fn odd_values_do_not_break_the_report() {
    let mut odd = small("read", "redb", 0.0);
    odd.latency.p99_us = f64::NAN;
    odd.latency.max_us = f64::INFINITY;
    odd.control_max_us = f64::NAN;
    odd.space_amplification = -1.0;
    odd.ops_per_s = f64::NAN;
    odd.seconds = 0.0;
    odd.settled_seconds = f64::NAN;
    odd.series.max_us = vec![f64::NAN, 0.0, -1.0, f64::INFINITY, 1e308];
    odd.series.debt_bytes = vec![u64::MAX, 0];
    odd.wrong_answers = 0;
    let no_buckets = Line { series: Series { bucket_ms: 0, ops: vec![1, 2], ..Series::default() }, ..odd.clone() };
    let lines = [odd, no_buckets, small("read", "sled", 0.0)];
    check_page(&report::html(&lines));
    assert!(report::table(&lines).contains("read, 1 thread"));
    let folder = tempfile::tempdir().expect("a folder");
    for &format in ImageFormat::ALL {
        report::write_images(&lines, folder.path(), format).expect("images");
    }
}

#[test]
fn a_stall_in_ten_thousand_buckets_is_shown() {
    let mut line = small("write", "redb", 10_000.0);
    line.seconds = 1000.0;
    line.series.ops = vec![1000; 10_000];
    line.series.max_us = vec![50.0; 10_000];
    line.series.ops[5_000..5_020].fill(0);
    line.series.max_us[5_020] = 2_000_000.0;
    let html = report::html(&[line]);
    assert!(html.contains("own median: redb 2 s (longest 2 s)"), "the stall is counted");
    assert!(html.contains("2 s</text>") || html.contains("1 s</text>"), "the axis includes the slowest operation");
    assert!(html.contains("class=\"pl-x pl-s0\""), "the stall is marked");
}

#[test]
fn many_engines_share_several_plots_with_one_scale() {
    let rivals = (0..9).map(|i| small("read", &format!("rival{i}"), 1000.0 + 100.0 * f64::from(i)));
    let own = (0..3).map(|i| Line { index: format!("i{i}"), ..small("read", "pando", 90_000.0 + f64::from(i)) });
    let lines: Vec<Line> = rivals.chain(own).collect();
    let html = report::html(&lines);
    check_page(&html);
    let plots: Vec<&str> = html.split("<figure>").filter(|plot| plot.contains("Throughput over time")).collect();
    assert_eq!(plots.len(), 3, "one plot of PandoDB's indexes, two of rivals");
    assert!(plots.iter().all(|plot| plot.contains("pando-i2</text>")), "the best of PandoDB's indexes is in all plots");
    assert!(plots.iter().all(|plot| plot.contains("80 k</text>")), "one scale");
}

#[test]
fn settling_and_an_incomplete_window_are_not_stalls() {
    let mut line = small("write", "redb", 10_000.0);
    line.seconds = 9.53;
    line.series.ops.truncate(95);
    line.series.ops.push(300);
    line.series.ops.extend([0; 50]);
    assert!(!report::html(&[line]).contains("own median"));
}

#[test]
fn different_operations_and_configurations_are_reported() {
    let mut lines = [small("read", "redb", 1.0), small("read", "redb", 1.0), small("read", "sled", 1.0)];
    lines[0].configuration.insert("cache".into(), "1 MiB".into());
    lines[2].configuration.insert("cache".into(), "2 MiB".into());
    lines[1].stream = "a".into();
    lines[2].stream = "b".into();
    let html = report::html(&lines);
    assert!(html.contains("rounds of redb differ in their configuration"));
    assert!(html.contains("the engines were not given the same operations"));
    assert!(html.contains("<th scope=\"row\" class=\"differs\">cache</th>"));
}

#[test]
fn files_are_read_and_errors_name_bad_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = folder.path().join("good.jsonl");
    let row = serde_json::to_string(&small("read", "redb", 5.0)).expect("JSON");
    let newer = "{\"workload\":\"scan\",\"novelty\":{\"a\":[1]},\"seconds\":null,\"series\":{\"max_us\":[1.5,null]}}";
    std::fs::write(&good, format!("{row}\n\n{newer}\n")).expect("written");
    let lines = report::read(&[&good]).expect("lines");
    assert_eq!((lines.len(), &lines[0], lines[1].workload.as_str()), (2, &small("read", "redb", 5.0), "scan"));
    assert_eq!(lines[1].series.max_us, [1.5, 0.0]);
    let bad = folder.path().join("bad.jsonl");
    std::fs::write(&bad, format!("{row}\n{{\"ops\":\"many\"}}\n")).expect("written");
    let error = report::read(&[good, bad]).expect_err("a bad line").to_string();
    assert!(error.contains("bad.jsonl:2: "), "{error}");
    let error = report::read(&[PathBuf::from("nowhere.jsonl")]).expect_err("no file").to_string();
    assert!(error.contains("nowhere.jsonl"), "{error}");
}

#[test]
fn an_engine_that_loses_acknowledged_writes_is_left_out_of_ratios() {
    let forgetful = Line { apart: true, ..small("load", "forgetful", 9000.0) };
    let lines = [small("load", "one", 1000.0), small("load", "two", 500.0), forgetful];
    let table = report::table(&lines);
    let ratios = table.lines().find(|line| line.contains("by the best other")).unwrap();
    assert!(ratios.contains("2.00×") && ratios.contains("0.50×") && ratios.contains("9.00×"), "{table}");
    assert!(table.contains("forgetful is left out of all ratios"), "{table}");
}

#[test]
fn an_engine_with_the_memory_of_a_rival_is_compared_with_this_rival_alone() {
    let matched = |rival: &str, rate, given_memory| Line {
        index: "stbe".into(),
        matched: rival.into(),
        given_memory,
        ..small("c", "pando", rate)
    };
    let mut lines = [
        matched("", 100.0, 0),
        matched("slow", 300.0, 2 << 20),
        small("c", "slow", 50.0),
        Line { peak_rss_bytes: 5 << 20, lab_bytes: 1 << 20, ..small("c", "fast", 200.0) },
    ];
    for line in &mut lines {
        line.asked.memory_budget = 1 << 20;
    }
    let text = report::table(&lines);
    let row = |name: &str| {
        let row = text.lines().find(|row| row.contains(name)).unwrap_or_else(|| panic!("{name} in {text}"));
        row.split('|').map(str::trim).filter(|cell| !cell.is_empty()).skip(1).collect::<Vec<_>>()
    };
    // The columns are PandoDB, PandoDB with the memory of the slow engine, then the others by name.
    assert!(row("operations/s")[1].contains("pando-stbe with the memory of slow"), "{text}");
    assert_eq!(row("by the best other"), ["0.50×", "6.00×", "2.00×", "0.25×"]);
    assert_eq!(row("memory budget"), ["1", "2", "1", "1"]);
    assert_eq!(row("of it the engine"), ["0", "0", "4", "0"]);
    let html = report::html(&lines);
    check_page(&html);
    assert!(html.contains("400 %") || html.contains("400\u{a0}%"), "the engine took four times its budget");
}

#[test]
fn transactions_have_a_table_and_hot_sets_are_separate_cases() {
    let transactional = |engine: &str, hot: u64, attempts_max: u64| {
        let mut line = small("smallbank", engine, 1000.0);
        line.asked.hot = hot;
        let (isolation, scheme) = ("snapshot".to_owned(), "optimistic".to_owned());
        let figures = TransactionFigures { isolation, scheme, attempts_mean: 1.25, attempts_max, ..Default::default() };
        Line { transactions: Some(figures), ..line }
    };
    let lines = [transactional("pando", 10, 7), transactional("pando", 10, 9), transactional("other", 100, 3)];
    let text = report::table(&lines);
    let rows: Vec<&str> = text.lines().filter(|row| row.contains("snapshot")).collect();
    assert_eq!(rows.len(), 2, "{text}");
    assert!(rows[0].contains("1.250") && rows[0].contains(" 9 |"), "the most attempts of both rounds: {}", rows[0]);
    assert!(rows[0].contains("hot customers 10") && rows[1].contains("hot customers 100"), "{text}");
    let html = report::html(&lines);
    check_page(&html);
    assert!(html.contains("<th scope=\"col\">isolation</th>"), "the page has the table");
    let plain = [small("a", "pando", 1000.0)];
    assert!(!report::table(&plain).contains("isolation"), "other workloads have no such table");
}
