//! Conformance tests of iterators: keys without values, both ends, seeks.

use std::collections::BTreeMap;
use std::ops::Bound;

use pandodb::base::random::Rng;
use pandodb::{Keyspace, Range};

use crate::{each, keys};

fn key(number: u64) -> [u8; 4] {
    u32::try_from(number).expect("small").to_be_bytes()
}

/// Fills a keyspace with keys in runs and in memtables, and deletes some of these keys. Returns the expected contents.
fn fill(keyspace: &Keyspace) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut model = BTreeMap::new();
    for round in 0..3u8 {
        for number in (0..900).filter(|number| number % 3 == u64::from(round) || number % 7 == 0) {
            keyspace.put(key(number), [round; 20]).unwrap();
            model.insert(key(number).to_vec(), vec![round; 20]);
        }
        keyspace.delete_range(key(400)..key(450)).unwrap();
        model.retain(|each, _| !(key(400).as_slice()..key(450).as_slice()).contains(&each.as_slice()));
        if round < 2 {
            keyspace.compact(..).unwrap();
        }
    }
    for number in (0..900).step_by(11) {
        keyspace.delete(key(number)).unwrap();
        model.remove(key(number).as_slice());
    }
    model
}

/// The keys that an iterator must return: the keys between the two ends of the iterator.
struct Expected<'a> {
    all: &'a BTreeMap<Vec<u8>, Vec<u8>>,
    bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    /// Whether the next row is borrowed.
    is_borrowed: bool,
}

impl Expected<'_> {
    fn left(&self) -> impl DoubleEndedIterator<Item = &Vec<u8>> {
        let asked = |key: &&Vec<u8>| std::ops::RangeBounds::contains(&self.bounds, *key);
        let left = |key: &&Vec<u8>| std::ops::RangeBounds::contains(&(self.from.as_ref(), self.to.as_ref()), key);
        self.all.keys().filter(asked).filter(left)
    }

    /// Takes one entry from an end of the iterator and compares it with the model.
    fn step(&mut self, range: &mut Range, backward: bool, what: &str) {
        let got = if self.is_borrowed {
            let row = if backward { range.next_row_back() } else { range.next_row() };
            row.expect("readable").map(|(key, _)| key.to_vec())
        } else {
            let row = if backward { range.next_back() } else { range.next() };
            row.map(|item| item.expect("readable").0.to_vec())
        };
        self.is_borrowed = !self.is_borrowed;
        let mut left = self.left();
        let want = if backward { left.next_back() } else { left.next() }.cloned();
        drop(left);
        assert_eq!(got, want, "{what}, backward: {backward}");
        if let Some(key) = want {
            *(if backward { &mut self.to } else { &mut self.from }) = Bound::Excluded(key);
        }
    }
}

#[test]
fn seeks_move_either_end_of_an_iterator() {
    each(|case| {
        let (_device, _store, ks) = case.fresh();
        let model = fill(&ks);
        let mut numbers = Rng(7);
        for round in 0..60 {
            let (low, high) = (numbers.below(500), 300 + numbers.below(600));
            let bounds = match round % 4 {
                0 => (Bound::Unbounded, Bound::Unbounded),
                1 => (Bound::Included(key(low).to_vec()), Bound::Excluded(key(high).to_vec())),
                2 => (Bound::Excluded(key(low).to_vec()), Bound::Included(key(high).to_vec())),
                _ => (Bound::Unbounded, Bound::Included(key(high).to_vec())),
            };
            let mut range = ks.range(bounds.clone());
            let (from, to) = (Bound::Unbounded, Bound::Unbounded);
            let mut expected = Expected { all: &model, bounds, from, to, is_borrowed: false };
            for _ in 0..40 {
                let sought = key(numbers.below(920)).to_vec();
                match numbers.below(8) {
                    0 => {
                        range.seek(&sought);
                        expected.from = Bound::Included(sought);
                    }
                    1 => {
                        range.seek_back(&sought);
                        expected.to = Bound::Included(sought);
                    }
                    // Seek a few entries forward, usually inside the current block.
                    2 => {
                        let next: Option<Vec<u8>> = expected.left().nth(3).cloned();
                        let Some(next) = next else { continue };
                        range.seek(&next);
                        expected.from = Bound::Included(next);
                    }
                    other => {
                        for _ in 0..numbers.below(12) {
                            expected.step(&mut range, other < 5, &format!("round {round}"));
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn an_ended_iterator_continues_after_a_seek_with_the_same_snapshot() {
    each(|case| {
        let (_device, _store, ks) = case.fresh();
        (0..100).for_each(|number| ks.put(key(number), "before").unwrap());
        let mut range = ks.iter();
        assert_eq!(range.by_ref().count(), 100);
        assert!(range.next().is_none() && range.next_back().is_none());
        (0..200).for_each(|number| ks.put(key(number), "after").unwrap());
        ks.compact(..).unwrap();
        range.seek(key(50));
        assert!(range.by_ref().all(|entry| entry.unwrap().1 == "before"));
        range.seek([]);
        range.seek_back(key(9));
        assert_eq!(keys(range.by_ref()).len(), 10);
        range.seek_back([0xff; 9]);
        assert_eq!(range.next().unwrap().unwrap().0, key(10), "the front end is where it was");
        range.seek(key(90));
        range.seek_back(key(20));
        assert!(range.next().is_none() && range.next_back().is_none(), "the ends have passed each other");
    });
}

#[test]
fn key_iterators_do_not_read_values() {
    each(|case| {
        let (_device, store, ks) = case.fresh();
        let model = fill(&ks);
        (0..5u8).for_each(|i| ks.put([0xfe, i], vec![i; 100_000]).unwrap());
        store.settle().unwrap();
        let before = store.stats().unwrap().read_bytes;
        let large: Vec<_> = ks.prefix([0xfe]).keys().rev().collect::<Result<_, _>>().unwrap();
        assert_eq!(large, [[0xfe, 4], [0xfe, 3], [0xfe, 2], [0xfe, 1], [0xfe, 0]]);
        assert!(store.stats().unwrap().read_bytes - before < 100_000, "no large value was read");
        let got: Vec<_> = ks.range(..[0xfe]).keys().collect::<Result<_, _>>().unwrap();
        assert!(got.iter().eq(model.keys()));
        let mut ends = ks.range(..[0xfe]).keys();
        ends.seek(key(300));
        ends.seek_back(key(500));
        let from = model.range(key(300).to_vec()..).next().unwrap().0;
        let to = model.range(..=key(500).to_vec()).next_back().unwrap().0;
        assert_eq!(ends.next().unwrap().unwrap(), from);
        assert_eq!(ends.next_back().unwrap().unwrap(), to);
    });
}

#[test]
fn first_and_last_are_keys_with_a_value() {
    each(|case| {
        let (_device, store, ks) = case.fresh();
        assert!(ks.first_key_value().unwrap().is_none() && ks.last_key_value().unwrap().is_none());
        (0..300).for_each(|number| ks.put(key(number), number.to_be_bytes()).unwrap());
        let then = store.snapshot();
        ks.delete_range(..key(100)).unwrap();
        (250..300).for_each(|number| ks.delete(key(number)).unwrap());
        for settled in [false, true] {
            let (last, value) = ks.last_key_value().unwrap().unwrap();
            assert_eq!(ks.first_key_value().unwrap().unwrap().0, key(100), "settled: {settled}");
            assert!(last == key(249) && value == 249u64.to_be_bytes(), "settled: {settled}");
            let at = ks.at(&then);
            assert_eq!(at.first_key_value().unwrap().unwrap().0, key(0));
            assert_eq!(at.last_key_value().unwrap().unwrap().0, key(299));
            store.settle().unwrap();
        }
    });
}
