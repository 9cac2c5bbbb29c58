//! Tests that `verify`, running concurrently with writers, reports all damage and nothing else.

use pandodb_proof::{Kind, run_until};

#[test]
fn verify_concurrent_with_writers_finds_damage_and_nothing_else() {
    let tally = run_until(Kind::Verify, 0.., 800);
    println!("{} rounds: {}", tally.runs, tally.words());
    tally.none();
    assert!(tally.counted("keyspaces dropped") > 8 && tally.counted("damaged blocks") > 2, "{}", tally.words());
}
