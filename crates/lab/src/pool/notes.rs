//! How much a second thread brings, on a machine that has other work, too.
//!
//! ```text
//!   thread 0   |note|note|note|··off the core··|note|note|         counts: the notes beside which all
//!   thread 1        |note|note|note|note|note|note|··off··|                of the other's are undisturbed
//! ```
//!
//! Each thread notes how long every few turns of its work take. Threads are taken off their cores, and two of them
//! perhaps never put on two at once; so what counts is the median of those notes during which nobody was disturbed: none that
//! took four times as long as the median and `SLACK_NS` more, and, of two threads, none beside which the other's did. The slack is
//! less than the shortest absence, and more than threads take who fight for a cache line: else a fight would count as an absence.

use std::sync::Barrier;
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Turns of work in a note: some tens of microseconds.
pub const TURNS: u64 = 64;

/// What a note may take beside four times the median, in nanoseconds.
const SLACK_NS: u64 = 100_000;

/// When each note of a thread began, in nanoseconds, and when the last one ended.
type Notes = Vec<u64>;

/// Nanoseconds of a turn, by one thread and by two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// By one thread.
    pub one_ns: f64,
    /// By each of two.
    pub two_ns: f64,
    /// Turns a second by two threads, by those of one: 2 where they share nothing.
    pub gain: f64,
    /// Notes of two threads that count.
    pub notes: u64,
}

/// Lengths of notes, as they come in.
#[derive(Debug, Default)]
pub struct Lengths([Vec<u64>; 2]);

impl Lengths {
    /// Has one thread do `notes` notes of `work`, then two at once. `work` gets the thread and the number of the note, and does
    /// [`TURNS`] turns.
    pub fn round(&mut self, notes: u64, work: &(dyn Fn(usize, u64) + Sync)) {
        for threads in [1, 2] {
            self.0[threads - 1].extend(counting(&run(threads, notes, work)));
        }
    }

    /// What came of it.
    pub fn pair(self) -> Pair {
        let notes = self.0[1].len() as u64;
        let [one_ns, two_ns] = self.0.map(|lengths| median(lengths) as f64 / TURNS as f64);
        Pair { one_ns, two_ns, gain: if two_ns > 0.0 { 2.0 * one_ns / two_ns } else { 0.0 }, notes }
    }
}

fn run(threads: usize, notes: u64, work: &(dyn Fn(usize, u64) + Sync)) -> Vec<Notes> {
    let (start, begin) = (Barrier::new(threads), Instant::now());
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let start = &start;
                scope.spawn(move || {
                    let mut times = Vec::with_capacity(notes as usize + 1);
                    start.wait();
                    for note in 0..notes {
                        times.push(begin.elapsed().as_nanos() as u64);
                        work(thread, note);
                    }
                    times.push(begin.elapsed().as_nanos() as u64);
                    times
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().expect("a thread")).collect()
    })
}

/// A note: when it began, how long it took, and whether it was undisturbed.
type Note = (u64, u64, bool);

fn judged(times: &Notes) -> Vec<Note> {
    let all: Vec<(u64, u64)> = times.windows(2).map(|pair| (pair[0], pair[1] - pair[0])).collect();
    let limit = 4 * median(all.iter().map(|note| note.1).collect()) + SLACK_NS;
    all.into_iter().map(|(begin, length)| (begin, length, length <= limit)).collect()
}

fn median(mut lengths: Vec<u64>) -> u64 {
    lengths.sort_unstable();
    lengths.get(lengths.len() / 2).copied().unwrap_or(0)
}

/// The lengths of the notes that count.
fn counting(all: &[Notes]) -> Vec<u64> {
    let threads: Vec<Vec<Note>> = all.iter().map(judged).collect();
    let mut lengths = Vec::new();
    for (i, notes) in threads.iter().enumerate() {
        let other = (threads.len() > 1).then(|| &threads[1 - i]);
        let mut at = 0;
        for &(begin, length, fine) in notes {
            let end = begin + length;
            let beside = other.is_none_or(|other| {
                at += other[at..].partition_point(|note| note.0 + note.1 <= begin);
                let covered = other.get(at).is_some_and(|note| note.0 <= begin)
                    && other.last().is_some_and(|last| last.0 + last.1 >= end);
                covered && other[at..].iter().take_while(|note| note.0 < end).all(|note| note.2)
            });
            if fine && beside {
                lengths.push(length);
            }
        }
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_undisturbed_notes_beside_undisturbed_ones_count() {
        const NS: u64 = 100_000;
        let steady: Notes = (0..=20).map(|i| NS * i).collect();
        assert_eq!(counting(std::slice::from_ref(&steady)), vec![NS; 20]);
        // The other thread is off its core between 5 and 15: of each, ten notes count.
        let cut: Notes = (0..=5).chain(15..=20).map(|i| NS * i).collect();
        assert_eq!(counting(&[steady, cut]), vec![NS; 20]);
    }
}
