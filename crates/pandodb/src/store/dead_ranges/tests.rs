//! Tests of the dead ranges alone: learned, skipped, cut and joined, against a model of which keys have values.

use super::*;
use crate::base::random::Rng;
use crate::device::MemDevice;
use crate::store::Store;

fn dead_ranges(most: usize) -> Arc<DeadRanges> {
    Arc::new(DeadRanges::new(Arc::new(Allowance::new(most))))
}

fn all(dead: &DeadRanges) -> Vec<(KeyRange, Seqno)> {
    dead.known.lock().ranges.all()
}

fn range(from: &str, to: &str) -> KeyRange {
    KeyRange::new(from, to)
}

/// Learns without writes in between.
fn learn(dead: &Arc<DeadRanges>, from: &str, to: &str, at: u64, oldest: u64) {
    dead.watch(&KeyRange::all(), false).learn(range(from, to), Seqno(at), Seqno(oldest));
}

#[test]
fn a_scan_skips_what_another_one_learned() {
    let dead = dead_ranges(10_000);
    assert_eq!(dead.skip(b"a", false, Seqno(9)), Skip::NoneBefore(None));
    learn(&dead, "c", "m", 5, 5);
    for position in ["c", "d", "lz"] {
        assert_eq!(dead.skip(position.as_bytes(), false, Seqno(9)), Skip::To(b"m".into()));
    }
    assert_eq!(dead.skip(b"c", false, Seqno(4)), Skip::NoneBefore(None), "an older read point may see values");
    assert_eq!(dead.skip(b"a", false, Seqno(9)), Skip::NoneBefore(Some(b"c".into())));
    assert_eq!(dead.skip(b"m", false, Seqno(9)), Skip::NoneBefore(None), "the upper bound is exclusive");
    for position in ["cc", "m"] {
        assert_eq!(dead.skip(position.as_bytes(), true, Seqno(9)), Skip::To(b"c".into()));
    }
    assert_eq!(dead.skip(b"x", true, Seqno(9)), Skip::NoneBefore(Some(b"m".into())));
    assert_eq!(dead.skip(b"", true, Seqno(9)), Skip::NoneBefore(Some(b"m".into())));
    assert_eq!(dead.skip(b"c", true, Seqno(9)), Skip::NoneBefore(None));
    learn(&dead, "m", "", 5, 5);
    assert_eq!(all(&dead), [(range("c", ""), Seqno(5))], "adjacent ranges are joined");
    assert_eq!(dead.skip(b"", true, Seqno(9)), Skip::To(b"c".into()));
    assert_eq!(dead.skip(b"q", false, Seqno(9)), Skip::To(b"".into()), "no key follows");
}

#[test]
fn a_write_cuts_its_key_out() {
    let dead = dead_ranges(10_000);
    learn(&dead, "", "", 5, 5);
    dead.revive(b"k");
    assert_eq!(all(&dead), [(range("", "k"), Seqno(5)), (range("k\0", ""), Seqno(5))]);
    dead.revive(b"k");
    dead.revive_range(&range("a", "c"));
    dead.revive_range(&range("j", "l"));
    let rest = [range("", "a"), range("c", "j"), range("l", "")];
    assert_eq!(all(&dead), rest.map(|range| (range, Seqno(5))));
    dead.revive(b"");
    assert_eq!(all(&dead)[0], (range("\0", "a"), Seqno(5)));
    assert_eq!(dead.skip(b"", false, Seqno(9)), Skip::NoneBefore(Some(b"\0".into())));
}

#[test]
fn a_range_ends_before_what_was_written_since_the_watch_began() {
    for reverse in [false, true] {
        let dead = dead_ranges(10_000);
        let watch = dead.watch(&range("b", "x"), reverse);
        for key in ["a", "g", "f", "h", "x"] {
            dead.revive(key.as_bytes());
        }
        let nearest = if reverse { "h" } else { "f" };
        assert_eq!(watch.nearest().as_deref(), Some(nearest.as_bytes()));
        watch.learn(range("b", "x"), Seqno(5), Seqno(5));
        let expected = if reverse { range("h\0", "x") } else { range("b", "f") };
        assert_eq!(all(&dead), [(expected, Seqno(5))], "reverse: {reverse}");
    }
    // What was written before the watch is the scan's to see, and a scan notes what is not visible to it yet.
    let dead = dead_ranges(10_000);
    dead.revive(b"k");
    let watch = dead.watch(&KeyRange::all(), false);
    assert_eq!(watch.nearest(), None);
    dead.note(b"p");
    assert_eq!(watch.nearest().as_deref(), Some(&b"p"[..]));
    watch.narrow(&range("", "c"));
    dead.revive(b"d");
    dead.revive(b"c");
    assert_eq!(watch.nearest().as_deref(), Some(&b"p"[..]), "keys outside of the range do not matter");
    dead.revive(b"a");
    assert_eq!(watch.nearest().as_deref(), Some(&b"a"[..]));
}

/// Regression: a scan of a damaged store, whose keys are out of order, ended in a panic of a debug build.
#[test]
fn a_scan_that_goes_back_learns_nothing() {
    for (reverse, back) in [(false, range("a", "e")), (true, range("b", "p"))] {
        let dead = dead_ranges(10_000);
        let watch = dead.watch(&KeyRange::all(), reverse);
        watch.learn(range("f", "h"), Seqno(5), Seqno(5));
        watch.learn(back, Seqno(5), Seqno(5));
        assert_eq!(all(&dead), [(range("f", "h"), Seqno(5))], "reverse: {reverse}");
    }
}

#[test]
fn a_scan_learns_one_stretch_after_the_other() {
    for reverse in [false, true] {
        let dead = dead_ranges(10_000);
        let watch = dead.watch(&KeyRange::all(), reverse);
        let mut stretches = [range("b", "d"), range("f", "h"), range("m", "")];
        if reverse {
            stretches.reverse();
        }
        for stretch in &stretches {
            watch.learn(stretch.clone(), Seqno(5), Seqno(5));
        }
        assert_eq!(all(&dead).len(), 3);
        drop(watch);
        assert_eq!(dead.len.load(Relaxed), 3, "the watch has ended");
    }
}

#[test]
fn older_read_points_keep_their_ranges() {
    let dead = dead_ranges(10_000);
    learn(&dead, "a", "c", 5, 5);
    // A scan at 9 extends the range while a scan at 5 is registered.
    learn(&dead, "a", "e", 9, 5);
    assert_eq!(all(&dead), [(range("a", "c"), Seqno(5)), (range("c", "e"), Seqno(9))]);
    assert_eq!(dead.skip(b"a", false, Seqno(5)), Skip::To(b"c".into()));
    assert_eq!(dead.skip(b"a", false, Seqno(9)), Skip::To(b"e".into()), "adjacent ranges are passed at once");
    assert_eq!(dead.skip(b"e", true, Seqno(9)), Skip::To(b"a".into()));
    assert_eq!(dead.skip(b"e", true, Seqno(5)), Skip::NoneBefore(Some(b"c".into())));
    // A scan at the older read point knows more than the younger range says.
    learn(&dead, "b", "d", 7, 7);
    assert_eq!(all(&dead), [(range("a", "d"), Seqno(7)), (range("d", "e"), Seqno(9))]);
    learn(&dead, "x", "y", 10, 10);
    assert_eq!(all(&dead).len(), 3);
    learn(&dead, "d", "f", 10, 10);
    assert_eq!(all(&dead), [(range("a", "f"), Seqno(10)), (range("x", "y"), Seqno(10))]);
}

#[test]
fn adjacent_ranges_stay_few() {
    let dead = dead_ranges(100_000);
    for i in 0..100u64 {
        let bound = |i: u64| (1000 + i).to_string();
        learn(&dead, &bound(i), &bound(i + 1), i + 1, 1);
        assert!(all(&dead).len() <= 17, "{} ranges", all(&dead).len());
        assert_eq!(dead.skip(b"1000", false, Seqno(i + 1)), Skip::To(bound(i + 1).into()));
    }
}

#[test]
fn memory_is_bounded_and_given_back() {
    let allowance = Arc::new(Allowance::new(1000));
    let [one, two] = [(); 2].map(|()| Arc::new(DeadRanges::new(allowance.clone())));
    for dead in [&one, &two] {
        for i in 0..100 {
            // Gaps between the ranges keep them apart.
            learn(dead, &format!("{i:03}"), &format!("{i:03}x"), 5, 5);
        }
    }
    let [ones, twos] = [&one, &two].map(|dead| all(dead).len());
    assert!(ones > 0 && ones + twos < 12, "{ones} + {twos}");
    // Ranges that no scan used since the last time make room for others.
    one.known.lock().ranges.drop_unused();
    (0..2).for_each(|_| one.known.lock().ranges.drop_unused());
    assert_eq!(all(&one), []);
    ["a", "b", "c"].iter().for_each(|from| learn(&one, from, &format!("{from}x"), 5, 5));
    one.known.lock().ranges.drop_unused();
    assert!(matches!(one.skip(b"b", false, Seqno(5)), Skip::To(_)));
    one.known.lock().ranges.drop_unused();
    assert_eq!(all(&one), [(range("b", "bx"), Seqno(5))], "only the used range is left");
    drop((one, two));
    assert_eq!(allowance.used(), 0);
    let long = dead_ranges(10_000);
    learn(&long, &"k".repeat(2600), "l", 5, 5);
    assert_eq!(all(&long), [], "long bounds would leave no room for other ranges");
    learn(&long, &"k".repeat(600), "l", 5, 5);
    assert_eq!(all(&long).len(), 1);
}

#[test]
fn a_keyspace_that_is_idle_makes_room_for_others() {
    let allowance = Arc::new(Allowance::new(1000));
    let [idle, busy] = [(); 2].map(|()| Arc::new(DeadRanges::new(allowance.clone())));
    let fill =
        |dead: &Arc<DeadRanges>| (0..100).for_each(|i| learn(dead, &format!("{i:03}"), &format!("{i:03}x"), 5, 5));
    fill(&idle);
    assert!(allowance.was_refused() && !allowance.was_refused(), "asked once");
    fill(&busy);
    assert_eq!(all(&busy), []);
    for _ in 0..2 {
        assert!(allowance.was_refused());
        [&idle, &busy].iter().for_each(|dead| dead.drop_unused());
        fill(&busy);
    }
    assert_eq!(all(&idle), []);
    assert!(!all(&busy).is_empty());
}

/// Which keys have a value at which seqno.
struct Model {
    /// Of each key, the seqnos of its writes and whether the write was a put.
    writes: Vec<Vec<(u64, bool)>>,
    now: u64,
}

const KEYS: u8 = 40;

impl Model {
    fn has_value(&self, key: u8, at: u64) -> bool {
        self.writes[usize::from(key)].iter().rev().find(|(seqno, _)| *seqno <= at).is_some_and(|(_, put)| *put)
    }

    /// Whether the key has no value from `at` on.
    fn is_dead(&self, key: u8, at: u64) -> bool {
        (at..=self.now).all(|at| !self.has_value(key, at))
    }

    /// The bound before `key`, and the one after it.
    fn bound(at: u8) -> Vec<u8> {
        if at >= KEYS { Vec::new() } else { vec![at] }
    }

    fn key_at(bound: &[u8], is_upper: bool) -> u8 {
        match bound {
            [] if is_upper => KEYS,
            [] => 0,
            [key, 0] => key + 1,
            [key] => *key,
            _ => unreachable!("bounds are keys and their successors"),
        }
    }

    /// Checks what `skip` says at each position, and returns which keys are skipped at `at`.
    fn check(&self, dead: &DeadRanges, at: u64) -> Vec<bool> {
        let mut skipped = vec![false; KEYS.into()];
        for key in 0..KEYS {
            if let Skip::To(bound) = dead.skip(&[key], false, Seqno(at)) {
                let to = Model::key_at(&bound, true);
                assert!(to > key, "a skip goes on");
                assert!((key..to).all(|key| !self.has_value(key, at)), "{key}..{to} at {at} was skipped");
                skipped[usize::from(key)] = true;
            }
            if let Skip::To(bound) = dead.skip(&[key, 0], true, Seqno(at)) {
                let from = Model::key_at(&bound, false);
                assert!((from..=key).all(|key| !self.has_value(key, at)), "{from}..={key} at {at} was skipped");
                assert!(skipped[usize::from(key)], "both directions skip the same keys");
            }
        }
        skipped
    }
}

#[test]
fn only_keys_without_a_value_are_skipped() {
    for seed in 0..30 {
        let mut rng = Rng(seed);
        let dead = dead_ranges(100_000);
        let mut model = Model { writes: vec![vec![(0, false)]; KEYS.into()], now: 1 };
        let (mut oldest, mut learned) = (1, 0);
        for _ in 0..600 {
            let key = rng.below(u64::from(KEYS)) as u8;
            match rng.below(10) {
                0..2 => {
                    dead.revive(&[key]);
                    model.now += 1;
                    model.writes[usize::from(key)].push((model.now, true));
                }
                2..6 => {
                    model.now += 1;
                    model.writes[usize::from(key)].push((model.now, false));
                }
                6 => oldest = model.now - rng.below(model.now - oldest + 1),
                _ => {
                    let at = oldest + rng.below(model.now - oldest + 1);
                    let reverse = rng.below(2) == 0;
                    let to = (key..KEYS).find(|key| !model.is_dead(*key, at)).unwrap_or(KEYS);
                    if to == key {
                        continue;
                    }
                    let points = [oldest, at, model.now];
                    let before = points.map(|at| model.check(&dead, at));
                    let range = KeyRange::new([key], Model::bound(to));
                    dead.watch(&range, reverse).learn(range.clone(), Seqno(at), Seqno(oldest));
                    learned += 1;
                    let after = points.map(|at| model.check(&dead, at));
                    assert!((key..to).all(|key| after[1][usize::from(key)]), "the learned range is skipped");
                    if all(&dead).len() <= 16 {
                        let is_kept = |(before, after): (&Vec<bool>, &Vec<bool>)| {
                            before.iter().zip(after).all(|(before, after)| *after || !before)
                        };
                        assert!(before.iter().zip(&after).all(is_kept), "a range was lost");
                    }
                }
            }
        }
        assert!(learned > 20, "{learned} ranges were learned");
    }
}

#[test]
fn scans_learn_what_they_pass() {
    let store = Store::builder("s").device(MemDevice::new()).memory_budget(8 << 20).background_threads(0);
    let store = store.open().unwrap();
    let queue = store.keyspace("q").unwrap();
    (0..3000u32).for_each(|i| queue.put(i.to_be_bytes(), [1; 20]).unwrap());
    for i in 0..1000u32 {
        let (first, _) = queue.first_key_value().unwrap().unwrap();
        assert_eq!(*first, i.to_be_bytes());
        let (last, _) = queue.last_key_value().unwrap().unwrap();
        assert_eq!(*last, (2999 - i).to_be_bytes());
        queue.delete(first).unwrap();
        queue.delete(last).unwrap();
        if i % 100 == 99 {
            // What was learned stays true while memtables move into the index.
            store.pack().unwrap();
        }
    }
    let dead = &queue.state.dead_ranges;
    let known = all(dead);
    assert!(known.len() <= 2 * 17, "{} ranges", known.len());
    let at = store.snapshot();
    let Skip::To(first) = dead.skip(b"", false, Seqno(at.seqno())) else { panic!("nothing is known of the head") };
    let Skip::To(last) = dead.skip(b"", true, Seqno(at.seqno())) else { panic!("nothing is known of the tail") };
    // Shorter ranges are not worth learning.
    assert!(*first > 980u32.to_be_bytes()[..]);
    assert!(*last < 2020u32.to_be_bytes()[..]);
    queue.put(500u32.to_be_bytes(), "back").unwrap();
    assert_eq!(queue.first_key_value().unwrap().unwrap().1, "back");
    assert_eq!(queue.iter().rev().filter(|row| row.is_ok()).count(), 1001);
}
