//! Tests the explorer: the explorer detects failures and is deterministic, and a few schedules of each scenario pass.

use super::*;

#[test]
fn some_schedules_of_each_scenario_pass() {
    for scenario in scenarios::all() {
        for strategy in [Strategy::Random, Strategy::Pct] {
            let outcome = run(scenario, Twist::None, Plan { strategy, seed: 1, length: 50 });
            assert_eq!((outcome.runs, outcome.failure), (50, None), "{}", scenario.name);
        }
    }
}

#[test]
fn every_canary_is_found_and_reproduced() {
    for scenario in scenarios::all() {
        let (plan, runs, failure) =
            find_canary(scenario, 1).unwrap_or_else(|| panic!("{}: canary not found", scenario.name));
        let second = run(scenario, Twist::Canary, plan);
        assert_eq!(
            (second.runs, second.failure.as_ref()),
            (runs, Some(&failure)),
            "{} is not repeatable",
            scenario.name
        );
    }
}

/// Batches that failed because of bugs of the engine that are fixed now.
#[test]
fn past_failures_stay_fixed() {
    let found = [
        // A close interrupted a checkpoint or a worker, which counted the interruption as a failure. Because of this
        // failure, the close synced nothing.
        ("close", "random:7000022:250"),
        ("close", "pct:7005067:250"),
        // A checkpoint waited for a seqno although the append of this seqno to the log had failed. The checkpoint then
        // panicked.
        ("sync-large", "random:7000022:250"),
        // A checkpoint's sync of the data file failed. The store acknowledged the commit of a large value although the
        // commit relied on this sync.
        ("sync-large", "pct:7001031:250"),
        // A thread folded a leaf in memory before another thread had counted the bytes of the leaf.
        ("direct-cut", "pct:7005067:250"),
        // A worker wrote leaves again and again that could not leave memory until a checkpoint was complete.
        ("folds", "pct:11001048:250"),
        ("close", "pct:11001071:250"),
        // A scan of a keyspace with direct writes silently ended early, because the keyspace was dropped during the scan.
        ("drop", "pct:11005090:250"),
    ];
    for (name, plan) in found {
        let scenario = scenarios::all().iter().find(|scenario| scenario.name == name).expect("a scenario");
        let plan: Plan = plan.parse().expect("a plan");
        assert_eq!(run(scenario, Twist::None, plan).failure, None, "{name} {plan}");
    }
}

#[test]
fn a_deadlock_and_a_livelock_are_found() {
    let stuck = |body| Scenario::for_tests("stuck", body);
    let deadlock = stuck(|_, _| {
        let (a, b) = (shuttle::sync::Mutex::new(()), shuttle::sync::Mutex::new(()));
        shuttle::thread::scope(|scope| {
            scope.spawn(|| {
                let _first = a.lock();
                drop(b.lock());
            });
            let _first = b.lock();
            drop(a.lock());
        });
    });
    let plan = Plan { strategy: Strategy::Random, seed: 1, length: 100 };
    let failure = run(&deadlock, Twist::None, plan).failure.expect("found");
    assert!(failure.contains("deadlock"), "{failure}");
    let circle = stuck(|_, _| {
        loop {
            shuttle::thread::yield_now();
        }
    });
    assert!(run(&circle, Twist::None, plan).failure.is_some());
}
