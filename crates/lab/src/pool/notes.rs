//! Measures the gain from a second thread, on a machine that also runs other work.
//!
//! ```text
//!   thread 0   |note|note|note|··preempted··|note|note|            counted: notes during which all notes
//!   thread 1        |note|note|note|note|note|··preempted··|       of the other thread are undisturbed
//! ```
//!
//! Each thread records the duration of every [`TURNS`] turns of its work. This record is a *note*. The scheduler may
//! preempt threads, or may never run two of them at the same time. So only undisturbed notes count, and the result is
//! their median. A note is *disturbed* if it took more than `SLACK_NS` plus four times the median of all notes. With
//! two threads, a note counts only if all concurrent notes of the other thread are undisturbed, too. `SLACK_NS` is less
//! than the shortest preemption, but more than the delay that contention for a cache line causes, because this delay
//! must not be mistaken for a preemption.

use std::sync::Barrier;
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// The number of turns of work in a note. These turns take some tens of microseconds.
pub const TURNS: u64 = 64;

/// An undisturbed note takes at most four times the median plus this number of nanoseconds.
const SLACK_NS: u64 = 100_000;

/// The times in nanoseconds at which the notes of a thread began, and the time at which the last note ended.
type Notes = Vec<u64>;

/// The duration of a turn in nanoseconds, with one thread and with two threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// The duration with one thread.
    pub one_ns: f64,
    /// The duration on each thread, when two threads run.
    pub two_ns: f64,
    /// Turns per second of two threads, divided by the turns per second of one thread. The gain is 2 if the threads do
    /// not slow each other down.
    pub gain: f64,
    /// The number of undisturbed notes of two threads.
    pub notes: u64,
}

/// The durations of undisturbed notes, of one thread and of two threads.
#[derive(Debug, Default)]
pub struct Lengths([Vec<u64>; 2]);

impl Lengths {
    /// Runs `notes` notes of `work` on one thread, and after that on two threads concurrently. `work` gets the thread
    /// and the number of the note, and does [`TURNS`] turns.
    pub fn round(&mut self, notes: u64, work: &(dyn Fn(usize, u64) + Sync)) {
        for threads in [1, 2] {
            self.0[threads - 1].extend(counting(&run(threads, notes, work)));
        }
    }

    /// The result of the measurement.
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

/// A note: its start time, its duration, and whether it was undisturbed.
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

/// The durations of the undisturbed notes.
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
    fn only_notes_undisturbed_on_both_threads_count() {
        const NS: u64 = 100_000;
        let steady: Notes = (0..=20).map(|i| NS * i).collect();
        assert_eq!(counting(std::slice::from_ref(&steady)), vec![NS; 20]);
        // The other thread is preempted between times 5 and 15, so ten notes of each thread count.
        let cut: Notes = (0..=5).chain(15..=20).map(|i| NS * i).collect();
        assert_eq!(counting(&[steady, cut]), vec![NS; 20]);
    }
}
