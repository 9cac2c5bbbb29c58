//! Tests of runs that a sorted load has built: their entries get their seqno when they are read.

use super::*;

/// Rows in key order: puts, and references to large values. Some values are long enough for leaves of several pages.
fn rows(count: u64) -> Vec<Message> {
    let row = |i: u64| {
        let (kind, value) = if i % 50 == 7 {
            let mut value = Vec::new();
            BlobRef { page: PageNo(i), len: 9_000, crc: 5 }.encode(&mut value);
            (Kind::BlobPut, value)
        } else {
            (Kind::Put, vec![i as u8; if i % 300 == 1 { 6_000 } else { i as usize % 90 }])
        };
        Message { key: format!("row{i:06}").into_bytes(), seqno: Seqno::UNASSIGNED, kind, value }
    };
    (0..count).map(row).collect()
}

fn build(bench: &Bench, id: u64, rows: &[Message], compression: Compression) -> RunMeta {
    let mut builder = RunBuilder::new(bench.data.clone(), OwnerId(id), 1 << 20).with_compression(compression);
    rows.iter().for_each(|row| builder.push(row.entry()).unwrap());
    builder.finish().unwrap().expect("rows were pushed")
}

/// Opens the run of `rows` with the seqno `at`, and returns the rows as readers should return them.
fn open(bench: &Bench, id: u64, rows: &[Message], compression: Compression, at: u64) -> (Arc<RunSlice>, Vec<Message>) {
    let meta = build(bench, id, rows, compression);
    let slice = bench.open(meta.stamped(Seqno(at)));
    (slice, rows.iter().cloned().map(|row| Message { seqno: Seqno(at), ..row }).collect())
}

#[test]
fn every_reader_returns_the_seqno_of_the_load() {
    for compression in [Compression::None, Compression::Lz4] {
        let bench = Bench::new();
        let rows = rows(4_000);
        let (slice, stamped) = open(&bench, 1, &rows, compression, 77_000);
        let mut random = Random(9);
        for i in 0..60 {
            let range = if i == 0 { KeyRange::all() } else { random_range(&mut random, &stamped) };
            for (reverse, readahead) in
                [(false, ReadAhead::Scan), (true, ReadAhead::Scan), (false, ReadAhead::Streaming(1 << 16))]
            {
                assert_eq!(scan(&slice, &range, reverse, readahead), expected(&stamped, &range, reverse), "{range:?}");
            }
        }
        // The first lookup of a row reads its leaf, and the second one finds the leaf in the pool.
        for row in stamped.iter().step_by(37) {
            (0..2).for_each(|_| assert_eq!(probe(&slice, &row.key).unwrap(), std::slice::from_ref(row)));
        }
        let (mut salvager, mut block) =
            (Salvager::new(slice.clone(), &KeyRange::all()), crate::base::EntryBlock::new());
        while let Piece::Entries = salvager.next(&mut block) {}
        assert!(block.iter().map(owned).eq(stamped.iter().cloned()), "a salvage returns the seqno, too");
        slice.run().verify(&mut |kind, checked| {
            checked.unwrap_or_else(|e| panic!("{kind:?}: {e}"));
        });
    }
}

#[test]
fn a_reopened_run_has_the_seqno_of_its_description() {
    let bench = Bench::new();
    let rows = rows(900);
    let (slice, stamped) = open(&bench, 1, &rows, Compression::None, 5);
    let mut bytes = Vec::new();
    slice.run().meta().encode(&mut bytes);
    let meta = RunMeta::decode(&mut crate::base::codec::Reader::new(&bytes, "run")).unwrap();
    assert_eq!((meta.min_seqno, meta.max_seqno, meta.keys), (Seqno(5), Seqno(5), 900));
    let again = RunSlice::whole(Run::reopen(bench.data.clone(), Arc::new(Pool::new(1 << 20)), meta));
    assert_eq!(scan(&again, &KeyRange::all(), false, ReadAhead::Scan), stamped);
    // A description with another seqno is wrong only if the footer shows it; here the footer has no seqno.
    again.run().verify(&mut |kind, checked| {
        checked.unwrap_or_else(|e| panic!("{kind:?}: {e}"));
    });
}

#[test]
fn ordinary_runs_are_not_changed() {
    let bench = Bench::new();
    let one: Vec<Message> = (0..500).map(|i| put(format!("k{i:05}").as_bytes(), 9, vec![1; 50])).collect();
    let slice = bench.run(1, &one);
    assert_eq!(scan(&slice, &KeyRange::all(), false, ReadAhead::Scan), one, "all entries have one seqno");
    let messages = sorted(random_messages(3, 800, 3, 40));
    assert_eq!(scan(&bench.run(2, &messages), &KeyRange::all(), false, ReadAhead::Scan), messages);
}

#[test]
#[should_panic(expected = "a run is stamped once")]
fn a_run_is_stamped_once() {
    let bench = Bench::new();
    let meta = build(&bench, 1, &rows(10), Compression::None).stamped(Seqno(3));
    let _ = meta.stamped(Seqno(4));
}
