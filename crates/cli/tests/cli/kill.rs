//! Kills a real process with SIGKILL, and checks that all acknowledged merges are in the store and that no counter is
//! off by one.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, BufWriter, Write},
    process::Stdio,
    time::{Duration, Instant},
};

use crate::common::{Place, command, run};

/// The number of counters.
const COUNTERS: u64 = 97;
/// The merges of a load that is not killed.
const MERGES: u64 = 400_000;
const ACK_EVERY: u64 = 50;

/// The operand and the counter of the n-th merge of a load.
fn merge(round: u64, n: u64) -> (String, u64) {
    let mixed = (n + round).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    (format!("counter{:03}", mixed % COUNTERS), mixed % 7 + 1)
}

/// Loads until about `kill_at` merges are acknowledged, kills the load, and returns the last acknowledgement.
fn load_and_kill(place: &Place, round: u64, kill_at: u64, delay: Duration) -> u64 {
    let store = place.path("s");
    let ack_every = ACK_EVERY.to_string();
    let mut load = command()
        .args(["load", store.to_str().unwrap(), "-", "--format", "kv", "--merge", "add_u64"])
        .args(["--memory-budget", "8MiB", "--ack-every", &ack_every])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdin = load.stdin.take().unwrap();
    let mut acks = BufReader::new(load.stdout.take().unwrap());
    let feeder = std::thread::spawn(move || {
        let mut stdin = BufWriter::new(stdin);
        // This thread ends with a broken pipe when the load is killed.
        (0..MERGES).try_for_each(|n| {
            let (counter, operand) = merge(round, n);
            writeln!(stdin, "{counter}\t{operand}")
        })
    });
    let mut acked = 0;
    let mut next = |acked: &mut u64| {
        let mut line = String::new();
        acks.read_line(&mut line).unwrap();
        let ack = line.strip_suffix('\n').and_then(|line| line.strip_prefix("acked ")?.parse().ok());
        if let Some(ack) = ack {
            *acked = ack;
        }
        ack.is_some()
    };
    while acked < kill_at {
        assert!(next(&mut acked), "the load ended before it was killed");
    }
    std::thread::sleep(delay);
    load.kill().unwrap();
    assert!(!load.wait().unwrap().success(), "the load completed before it was killed");
    while next(&mut acked) {}
    assert!(feeder.join().unwrap().is_err(), "the load read its complete input before it was killed");
    acked
}

/// Returns how many merges of the round are contained in the counters. Panics if these merges are not the first merges
/// of the round.
fn prefix_that_explains(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>, round: u64) -> u64 {
    let total: u64 = after.values().sum();
    let mut counters = before.clone();
    let mut sum: u64 = counters.values().sum();
    for n in 0..=MERGES {
        if sum == total {
            assert_eq!(&counters, after, "round {round}: the counters are not a prefix of the load");
            return n;
        }
        let (counter, operand) = merge(round, n);
        *counters.entry(counter).or_default() += operand;
        sum += operand;
    }
    panic!("round {round}: the counters add up to {total}, more than was written");
}

fn counters(place: &Place) -> BTreeMap<String, u64> {
    let text = place.pando("scan", &["--as", "u64"]).ok();
    let pair = |line: &str| {
        let (key, value) = line.split_once('\t').unwrap();
        (key.to_owned(), value.parse().unwrap())
    };
    text.lines().map(pair).collect()
}

#[test]
fn ten_kills_lose_nothing_acknowledged_and_count_nothing_twice() {
    let place = Place::new();
    let mut before = BTreeMap::new();
    for round in 0..10 {
        let acked = load_and_kill(&place, round, 1_000 + 1_700 * round, Duration::from_micros(731 * round));
        let reopening = Instant::now();
        let after = counters(&place);
        let took = reopening.elapsed();
        assert!(took < Duration::from_secs(2), "round {round}: reopening took {took:?}");
        let there = prefix_that_explains(&before, &after, round);
        assert!(there >= acked, "round {round}: {acked} were acknowledged, {there} are in the store");
        assert!(there < MERGES);
        before = after;
    }
    assert_eq!(place.pando("verify", &["--json"]).json()["sound"], true);
}

/// Tests that the harness detects a merge that was applied twice.
#[test]
fn the_check_detects_a_wrong_counter() {
    let mut after = BTreeMap::new();
    for n in 0..100 {
        let (counter, operand) = merge(0, n);
        *after.entry(counter).or_default() += operand;
    }
    assert_eq!(prefix_that_explains(&BTreeMap::new(), &after, 0), 100);
    *after.values_mut().next().unwrap() += 1;
    let caught = std::panic::catch_unwind(|| prefix_that_explains(&BTreeMap::new(), &after, 0));
    assert!(caught.is_err());
}

#[test]
fn the_demo_passes_and_leaves_nothing_behind() {
    let place = Place::new();
    let output = command().args(["demo", "--json"]).env("TMPDIR", place.dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["passed"], &report["flights"]), (&true.into(), &231_083.into()));
    assert_eq!(std::fs::read_dir(place.dir.path()).unwrap().count(), 0);

    std::fs::write(place.path("occupied"), "x").unwrap();
    run(&["demo", "--keep", place.dir.path().to_str().unwrap()], b"").fails(2);
}
