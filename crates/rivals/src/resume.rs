//! Reads from lines of results what a run has already measured, so that an interrupted run can be resumed, and how much
//! memory a rival really took, so that PandoDB can be measured with the same memory.
//!
//! A *measurement* is one engine with one data set and one number of threads in one round. It has a line for each workload. Lines are
//! counted: a measurement of round `n` is done if the file has `n` lines of each workload with the same settings. So
//! rounds are interchangeable, and a measurement that was interrupted between two workloads is repeated as a whole.

use pandodb_lab::line::{Asked, Line};

/// The settings that identify the lines of a measurement.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The name of the engine in tables ([`Line::who`]).
    pub who: String,
    /// The number of client threads.
    pub threads: usize,
    /// The workloads with their settings.
    pub workloads: Vec<(String, Asked)>,
}

impl Measurement {
    /// The lines of a workload, in the order of the file, including those of a refusal. The limit of the cgroup is not
    /// compared, since it is known only when the cgroup was created.
    fn lines<'a>(&'a self, lines: &'a [Line], workload: &'a (String, Asked)) -> impl Iterator<Item = &'a Line> + 'a {
        let (name, asked) = workload;
        let is_same = |line: &Line| Asked { memory_limit: asked.memory_limit, ..line.asked.clone() } == *asked;
        lines.iter().filter(move |line| {
            line.workload == *name && line.threads == self.threads && line.who() == self.who && is_same(line)
        })
    }

    /// Whether the lines contain this measurement in the given round, which counts from 1.
    ///
    /// ```
    /// use pandodb_lab::line::{Asked, Line};
    /// use pandodb_rivals::resume::Measurement;
    ///
    /// let workloads = vec![("load".to_owned(), Asked::default())];
    /// let measurement = Measurement { who: "lmdb".to_owned(), threads: 1, workloads };
    /// let line = Line { workload: "load".to_owned(), engine: "lmdb".to_owned(), threads: 1, ..Line::default() };
    /// assert!(measurement.is_done(&[line.clone()], 1));
    /// assert!(!measurement.is_done(&[line], 2));
    /// ```
    pub fn is_done(&self, lines: &[Line], round: u32) -> bool {
        self.workloads.iter().all(|workload| self.lines(lines, workload).count() >= round as usize)
    }

    /// The peak memory of the engine in bytes: the most in any workload of its first round, without the lab's own memory.
    /// `None` if no workload was measured. Later rounds do not count, so that all rounds give PandoDB the same memory.
    pub fn peak_memory(&self, lines: &[Line]) -> Option<u64> {
        let first = |workload| self.lines(lines, workload).find(|line| line.refused.is_none());
        self.workloads.iter().filter_map(first).map(Line::engine_bytes).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(workload: &str, records: u64, peak: u64) -> Line {
        Line {
            workload: workload.to_owned(),
            engine: "lmdb".to_owned(),
            threads: 1,
            peak_rss_bytes: peak + 10,
            lab_bytes: 10,
            asked: Asked { records, memory_limit: 99, ..Asked::default() },
            ..Line::default()
        }
    }

    fn measurement() -> Measurement {
        let asked = Asked { records: 5, ..Asked::default() };
        let workloads = ["load", "c"].map(|name| (name.to_owned(), asked.clone())).to_vec();
        Measurement { who: "lmdb".to_owned(), threads: 1, workloads }
    }

    #[test]
    fn a_measurement_is_done_if_each_workload_has_its_lines() {
        let (done, measurement) = ([line("load", 5, 1), line("load", 5, 1), line("c", 5, 1)], measurement());
        assert!(!measurement.is_done(&done[..2], 1), "workload c is missing");
        assert!(measurement.is_done(&done, 1) && !measurement.is_done(&done, 2));
        let others = [
            Line { threads: 2, ..line("c", 5, 1) },
            Line { engine: "redb".to_owned(), ..line("c", 5, 1) },
            Line { matched: "lmdb".to_owned(), ..line("c", 5, 1) },
            line("c", 6, 1),
        ];
        for other in others {
            assert!(!measurement.is_done(&[done[0].clone(), other.clone()], 1), "{other:?}");
        }
        let refused = Line { refused: Some("why".to_owned()), ..line("c", 5, 1) };
        assert!(measurement.is_done(&[done[0].clone(), refused], 1), "a refusal is not repeated");
    }

    #[test]
    fn the_peak_of_the_first_round_counts() {
        let measurement = measurement();
        let lines = [line("load", 5, 70), line("c", 5, 100), line("load", 5, 500), line("e", 5, 600)];
        assert_eq!(measurement.peak_memory(&lines), Some(100));
        let refused = Line { refused: Some("why".to_owned()), ..line("load", 5, 900) };
        assert_eq!(measurement.peak_memory(&[refused.clone(), line("load", 5, 3)]), Some(3));
        assert_eq!(measurement.peak_memory(&[refused]), None);
    }
}
