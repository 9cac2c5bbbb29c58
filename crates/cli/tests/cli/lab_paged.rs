//! Tests `pando lab paged`.

use crate::common::{Place, run};

#[test]
fn experiments_print_the_claims_of_the_source_and_remove_their_files() {
    let place = Place::new();
    let directory = place.path("pages");
    std::fs::create_dir(&directory).unwrap();
    let store = directory.to_str().unwrap();
    let small = ["--records", "3000", "--rounds", "1", "--page", "1024", "--value", "24", "--store", store];
    let paged = |more: &[&str]| run(&[&["lab", "paged"][..], more, &small].concat(), b"");
    let text = paged(&["inserts", "--epsilon", "0.5"]).ok();
    assert!(text.contains("betree") && text.contains("7.2 ×") && text.contains("the source"), "{text}");
    let text = paged(&["coupling", "buffers", "--json"]).ok();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rows = lines.iter().filter(|line| line["kind"] == "paged").count();
    let claims = lines.iter().filter(|line| line["measured"].as_f64().is_some_and(|ratio| ratio > 0.0)).count();
    assert!(rows >= 8 && claims >= 6 && rows + claims == lines.len(), "{text}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "the files are removed");
}

#[test]
fn impossible_sizes_are_misuse() {
    let error = run(&["lab", "paged", "inserts", "--page", "64"], b"").fails(2);
    assert!(error.contains("at least"), "{error}");
    run(&["lab", "paged", "inserts", "--epsilon", "1.5"], b"").fails(2);
    run(&["lab", "paged", "inserts", "--memory-share", "0"], b"").fails(2);
    run(&["lab", "paged", "nothing"], b"").fails(2);
    run(&["lab", "paged"], b"").fails(2);
}
