//! Tests `pando lab figure` and `pando lab figures`.

use crate::common::{Place, run};

#[test]
fn figures_are_listed_and_measured_and_results_are_reused() {
    let list = run(&["lab", "figures"], b"").ok();
    assert!(list.contains("002-3.10") && list.contains("KVell"), "{list}");
    assert_eq!(run(&["lab", "figures", "--json"], b"").json().as_array().unwrap().len(), 16);

    let place = Place::new();
    let (lines, pictures, stores) = (place.path("lines.jsonl"), place.path("pictures"), place.path("stores"));
    let (lines, stores) = (lines.to_str().unwrap(), stores.to_str().unwrap());
    let figure = |id: &str, more: &[&str]| {
        let words = ["lab", "figure", id, "--records", "2000", "--memory-budget", "1MiB", "--store", stores];
        run(&[&words[..], more].concat(), b"")
    };
    let text = figure("002-3.6", &["-o", lines, "--svg", pictures.to_str().unwrap()]).ok();
    assert!(text.contains("mode    product, paper") && text.contains("needs lines of rocksdb"), "{text}");
    assert!(pictures.join("002-3.6-throughput.svg").exists());
    assert!(pictures.join("002-3.6-throughput-paper.svg").exists(), "paper mode has a plot of its own");
    let again = figure("002-3.7", &["--mode", "product", "--with", lines, "--no-run", "--json"]).json();
    assert!(again["claims"][0]["measured"].as_f64().is_some_and(|value| value > 0.5), "{again}");
    // The lines of the other mode are not used.
    assert!(again["set_aside"].as_u64().is_some_and(|aside| aside > 0), "{again}");
}

#[test]
fn an_unknown_figure_is_misuse() {
    assert!(run(&["lab", "figure", "002-9.9"], b"").fails(2).contains("002-3.6"));
    run(&["lab", "figure", "002-3.6", "--scale", "0"], b"").fails(2);
    run(&["lab", "figure", "002-3.6", "--no-run"], b"").fails(2);
}
