//! The contents of a writer's nth batch, and the contents of the store after a given number of batches of each writer.
//!
//! | keyspace | entry | written by |
//! | --- | --- | --- |
//! | `rows` | `w/n` ↦ bytes of a seeded length | puts; range deletes remove old rows, and point deletes remove a few other rows |
//! | `sums` | `counter` ↦ sum of the operands | merges |
//! | `heads` | `w` ↦ number of batches of the writer, and for each writer the number of batches acknowledged before | a put in each batch |

use std::collections::BTreeMap;

use pandodb::{AddU64, Batch, Durability, Keyspace, KeyspaceOptions, Result, Store};

use super::WRITERS;
use crate::indexes;
use crate::script::Rng;

/// The number of newest rows of a writer that a range delete keeps.
const KEPT: u64 = 600;
/// Every 128th batch deletes the older rows of its writer with a range delete.
const SWEEP: u64 = 128;
/// Number of counters.
const COUNTERS: u64 = 61;
/// Values of more bytes than this are stored as blobs.
const BLOB_THRESHOLD: usize = 1_500;

/// The keyspaces.
pub struct Spaces {
    pub rows: Keyspace,
    pub sums: Keyspace,
    pub heads: Keyspace,
}

impl Spaces {
    pub fn open(store: &Store) -> Result<Spaces> {
        Ok(Spaces {
            rows: store.keyspace_with("rows", KeyspaceOptions::new().blob_threshold(BLOB_THRESHOLD))?,
            sums: store.keyspace_with("sums", KeyspaceOptions::new().merge(AddU64))?,
            heads: store.keyspace("heads")?,
        })
    }
}

/// Opens the store of a seed.
pub fn open(folder: &std::path::Path, seed: u64, workers: usize) -> Result<Store> {
    let mut rng = Rng(seed);
    Store::builder(folder)
        .background_threads(workers)
        .memory_budget(8 << 20)
        .memtable_bytes((32 << 10) << rng.below(4))
        .segment_bytes((64 << 10) << rng.below(4))
        .reserve_bytes(1 << 20)
        .index(indexes::options(seed))
        // 1 to 3 log streams. The number depends on `workers`, so it changes between openings.
        .log_streams(1 + (rng.index(3) + workers) % 3)
        .open()
}

/// The random number generator of a batch.
fn rng(writer: u64, number: u64) -> Rng {
    Rng(writer << 56 ^ number.wrapping_mul(0x2545_F491_4F6C_DD1D))
}

pub fn row_key(writer: u64, number: u64) -> Vec<u8> {
    format!("{writer}/{number:012}").into_bytes()
}

fn row_value(writer: u64, number: u64) -> Vec<u8> {
    let mut rng = rng(writer, number);
    let len = if rng.chance(2) { 1_501 + rng.below(8_000) } else { rng.below(180) };
    let fill = rng.next_u64().to_le_bytes();
    fill.iter().copied().cycle().take(len as usize).collect()
}

/// The two merges of a batch: counter and operand.
fn operands(writer: u64, number: u64) -> [(Vec<u8>, u64); 2] {
    let mut rng = rng(writer, !number);
    [(); 2].map(|()| (format!("counter{:02}", rng.below(COUNTERS)).into_bytes(), 1 + rng.below(9)))
}

/// The row that a batch deletes with a point delete, if any: one of the 8 rows before the row of the batch.
fn single_delete(writer: u64, number: u64) -> Option<u64> {
    let mut rng = rng(writer, number ^ 0xDE1);
    (rng.chance(10) && number > 10).then(|| number - 1 - rng.below(8))
}

/// The durability of a batch.
pub fn durability(writer: u64, number: u64) -> Durability {
    match rng(writer, number ^ 0xD0).below(100) {
        0..=9 => Durability::None,
        10..=11 => Durability::Synced,
        _ => Durability::Buffered,
    }
}

/// Fills batch `number` of a writer. `seen`: the number of acknowledged batches of each writer.
pub fn fill(batch: &mut Batch, spaces: &Spaces, writer: u64, number: u64, seen: &[u64]) {
    let row = row_key(writer, number);
    batch.put(&spaces.rows, &row, row_value(writer, number));
    for (counter, operand) in operands(writer, number) {
        batch.merge(&spaces.sums, counter, operand.to_le_bytes());
    }
    if let Some(gone) = single_delete(writer, number) {
        batch.delete(&spaces.rows, row_key(writer, gone));
    }
    if number % SWEEP == SWEEP - 1 && number > KEPT {
        batch.delete_range(&spaces.rows, row_key(writer, 0)..row_key(writer, number - KEPT));
    }
    let mut head = (number + 1).to_le_bytes().to_vec();
    seen.iter().for_each(|other| head.extend_from_slice(&other.to_le_bytes()));
    batch.put(&spaces.heads, writer.to_string(), head);
}

/// Reads from the store, for each writer: the number of its batches, and the numbers of all writers that its last batch
/// recorded.
pub fn heads(spaces: &Spaces) -> Result<Vec<(u64, Vec<u64>)>> {
    let read = |writer: u64| {
        let Some(head) = spaces.heads.get(writer.to_string())? else { return Ok((0, vec![0; WRITERS as usize])) };
        let numbers = head.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
        let numbers: Vec<u64> = numbers.collect();
        Ok((numbers[0], numbers[1..].to_vec()))
    };
    (0..WRITERS).map(read).collect()
}

/// The rows of a writer after `head` batches.
fn rows_of(writer: u64, head: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let swept = (0..head).rev().find(|number| number % SWEEP == SWEEP - 1 && *number > KEPT);
    let first = swept.map_or(0, |number| number - KEPT);
    let mut rows: BTreeMap<_, _> =
        (first..head).map(|number| (row_key(writer, number), row_value(writer, number))).collect();
    (first..head).filter_map(|number| single_delete(writer, number)).for_each(|gone| {
        rows.remove(&row_key(writer, gone));
    });
    rows
}

/// Compares the contents of the store with the contents after `heads` batches of the writers. On entry, `sums` holds
/// the counters after `counted` batches. The function advances `sums` and `counted` to `heads`.
pub fn compare(
    spaces: &Spaces,
    heads: &[u64],
    counted: &mut [u64],
    sums: &mut BTreeMap<Vec<u8>, u64>,
) -> Result<Result<(), String>> {
    let mut rows = BTreeMap::new();
    for (writer, head) in (0..).zip(heads) {
        rows.extend(rows_of(writer, *head));
        for number in counted[writer as usize]..*head {
            operands(writer, number).into_iter().for_each(|(counter, n)| *sums.entry(counter).or_default() += n);
        }
        counted[writer as usize] = *head;
    }
    for entry in spaces.rows.iter() {
        let (key, value) = entry?;
        match rows.remove(&key[..]) {
            Some(expected) if expected[..] == value[..] => {}
            Some(_) => return Ok(Err(format!("row {} has a wrong value", String::from_utf8_lossy(&key)))),
            None => return Ok(Err(format!("row {} should not exist", String::from_utf8_lossy(&key)))),
        }
    }
    if let Some(key) = rows.keys().next() {
        return Ok(Err(format!("{} rows are missing, the first is {}", rows.len(), String::from_utf8_lossy(key))));
    }
    let mut left = sums.clone();
    for entry in spaces.sums.iter() {
        let (key, value) = entry?;
        let found = u64::from_le_bytes(value[..].try_into().expect("eight bytes"));
        let expected = left.remove(&key[..]);
        if expected != Some(found) {
            let name = String::from_utf8_lossy(&key);
            return Ok(Err(format!("{name} is {found}, expected {expected:?}")));
        }
    }
    Ok(if left.is_empty() { Ok(()) } else { Err(format!("{} counters are missing", left.len())) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_comparison_accepts_the_right_contents_and_detects_wrong_ones() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = open(&folder.path().join("s"), 3, 0).expect("opens");
        let spaces = Spaces::open(&store).expect("made");
        let (mut counted, mut sums) = (vec![0; 2], BTreeMap::new());
        for (writer, count) in [(0, 900), (1, 70)] {
            for number in 0..count {
                let mut batch = store.batch();
                fill(&mut batch, &spaces, writer, number, &[0, 0]);
                batch.commit(Durability::None).expect("committed");
            }
        }
        let found: Vec<u64> = heads(&spaces).expect("read").into_iter().map(|(head, _)| head).collect();
        assert_eq!(found, [900, 70]);
        assert_eq!(compare(&spaces, &found, &mut counted, &mut sums).expect("read"), Ok(()));
        // The canaries: a doubled merge, a lost row, an extra row.
        spaces.sums.merge("counter05", 1_u64.to_le_bytes()).expect("merged");
        let doubled = compare(&spaces, &found, &mut counted, &mut sums).expect("read");
        assert!(doubled.as_ref().is_err_and(|e| e.contains("counter05")), "{doubled:?}");
        let lost = compare(&spaces, &[901, 70], &mut counted, &mut sums).expect("read");
        assert!(lost.is_err());
        spaces.rows.put("0/0", "x").expect("put");
        assert!(compare(&spaces, &found, &mut counted, &mut sums).expect("read").is_err());
    }
}
