//! [`Results`]: all lines of a figure, and the queries that claims and plots use.

use super::probe::Bandwidth;
use super::{Figure, OURS, Scale, Step};
use crate::engine::Mode;
use crate::line::Line;
use crate::workload::Kind;

/// A value, or the reason why the value is missing.
pub type Answer = std::result::Result<f64, String>;

/// Whether a line is a measurement of PandoDB, in either mode.
pub fn is_ours(line: &Line) -> bool {
    line.engine == "pando"
}

/// All measurements for a figure in one mode.
#[derive(Debug)]
pub struct Results {
    /// The figure.
    pub figure: &'static Figure,
    /// The scale of the measurement.
    pub scale: Scale,
    /// The lines of PandoDB and of rivals.
    pub lines: Vec<Line>,
    /// The number of given lines that fit no step of the figure.
    pub set_aside: usize,
    /// The bandwidths of the device, if the figure needs them.
    pub device: Option<Bandwidth>,
}

/// Whether a line fits a step, which means that the line and the step have the same workload, distribution, sizes,
/// memory, caches, rate and number of threads. A line of PandoDB must also have the same index, size of a memtable and
/// durability.
pub fn fits(line: &Line, step: &Step) -> bool {
    let plan = &step.plan;
    let Some(workload) = plan.workloads.iter().find(|workload| workload.name == line.workload) else { return false };
    let mixed = workload.kind == Kind::LoadMixed;
    line.asked.dist == plan.dist.unwrap_or(workload.dist).name()
        && line.asked.records == plan.records
        && (line.asked.key_len, line.asked.value_len) == (plan.key_len, plan.value_len)
        && line.asked.memory_budget == plan.setup.memory_budget as u64
        && line.threads == plan.threads
        && (line.mode == plan.setup.mode || !is_ours(line))
        && line.asked.cache == plan.cache.name()
        && line.asked.rate == plan.rate.unwrap_or(0.0)
        && line.asked.deterministic == plan.setup.deterministic
        && (!mixed || line.asked.seq_share == plan.seq_share)
        && (!is_ours(line) || is_measured_by(line, step))
}

/// Whether a line of PandoDB has the index, the size of a memtable and the durability of a step.
fn is_measured_by(line: &Line, step: &Step) -> bool {
    let memtable = line.configuration.get("memtable_bytes");
    durability(line) == format!("{:?}", step.durability)
        && line.index == step.index.to_string()
        && step.memtable_bytes.is_none_or(|bytes| memtable.is_none_or(|found| *found == bytes.to_string()))
}

fn durability(line: &Line) -> &str {
    line.configuration.get("durability").map_or("Buffered", String::as_str)
}

/// Whether a line of PandoDB was measured with the durability of the other engines, not with the lazy log.
pub fn is_logged(line: &Line) -> bool {
    !is_ours(line) || durability(line) != "None"
}

/// The rate of a line, computed over the time until all background work is done.
pub fn rate(line: &Line) -> f64 {
    line.fair_ops_per_s()
}

/// Total bytes of the keys and values that the operations put or found.
fn user_bytes(line: &Line) -> f64 {
    (line.ops.max(line.found) * (line.asked.key_len + line.asked.value_len) as u64) as f64
}

/// Bytes read and written for each byte of keys and values, for a load, for lookups or for scans. The value is not
/// defined for a mix of reads and writes, because read amplification is relative to the bytes that were found, and
/// write amplification to the bytes that were put.
pub fn io_amplification(line: &Line) -> f64 {
    line.write_amplification + line.read_bytes_per_op * line.ops as f64 / user_bytes(line)
}

/// Write amplification of a load of PandoDB without the bytes of the log.
pub fn without_log(line: &Line) -> Answer {
    let log = line.inside.counters.get("device.log.write_bytes").ok_or("the log's bytes are not known")?;
    Ok(line.write_amplification - *log as f64 / user_bytes(line))
}

/// Bytes per second read and written on the device during the operations.
pub fn io_bytes_per_s(line: &Line) -> f64 {
    let seconds = line.seconds.max(line.settled_seconds);
    if seconds > 0.0 { io_amplification(line) * user_bytes(line) / seconds } else { 0.0 }
}

/// Bytes per second that scans returned.
pub fn scanned_bytes_per_s(line: &Line) -> f64 {
    let record = (line.asked.key_len + line.asked.value_len) as f64;
    if line.seconds > 0.0 { line.found as f64 * record / line.seconds } else { 0.0 }
}

impl Results {
    /// The name that an engine has in the lines of this mode. For [`OURS`], the name contains the mode.
    fn name<'a>(&self, who: &'a str) -> &'a str {
        match (who, self.scale.mode) {
            (OURS, Mode::Paper) => "pando-stbe-paper",
            _ => who,
        }
    }

    /// The names of the measured engines, PandoDB first.
    pub fn whos(&self) -> Vec<String> {
        let mut whos: Vec<String> = self.lines.iter().map(Line::who).collect();
        whos.sort_by_key(|who| (who != self.name(OURS), who.clone()));
        whos.dedup();
        whos
    }

    /// The line of an engine for which `is` returns true. If several lines match, returns the line with the median
    /// rate.
    ///
    /// # Errors
    /// The reason why no line is usable: not measured, refused, or wrong answers.
    pub fn one(&self, who: &str, is: impl Fn(&Line) -> bool) -> std::result::Result<&Line, String> {
        let name = self.name(who);
        self.median(who, |line| line.who() == name && is(line))
    }

    /// The line with the median rate among the lines for which `is` returns true. `who` is the engine's name; an error
    /// message contains it.
    ///
    /// # Errors
    /// As [`Results::one`].
    pub fn median(&self, who: &str, is: impl Fn(&Line) -> bool) -> std::result::Result<&Line, String> {
        let all: Vec<&Line> = self.lines.iter().filter(|line| is(line)).collect();
        let mut good: Vec<&Line> =
            all.iter().copied().filter(|line| line.refused.is_none() && line.wrong_answers == 0).collect();
        good.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
        if let Some(line) = good.get(good.len().saturating_sub(1) / 2) {
            return Ok(line);
        }
        match all.first() {
            Some(line) if line.wrong_answers > 0 => Err("wrong answers".to_owned()),
            Some(line) => Err(line.refused.clone().unwrap_or_default()),
            None if who.starts_with("pando-") => Err("not measured".to_owned()),
            None => Err(format!("needs lines of {who}")),
        }
    }

    /// The line of an engine for a workload.
    ///
    /// # Errors
    /// As [`Results::one`].
    pub fn of(&self, who: &str, workload: &str) -> std::result::Result<&Line, String> {
        self.one(who, |line| line.workload == workload)
    }

    /// The rate of PandoDB divided by the rate of a rival.
    pub fn by_rival(&self, rival: &str, workload: &str) -> Answer {
        Ok(rate(self.of(OURS, workload)?) / rate(self.of(rival, workload)?))
    }

    /// The bandwidths of the device.
    ///
    /// # Errors
    /// If the device was not measured.
    pub fn device(&self) -> std::result::Result<&Bandwidth, String> {
        self.device.as_ref().ok_or_else(|| "the device was not probed".to_owned())
    }

    /// The points of an engine's curve: x and y of each line that has both values, in the order of x.
    pub fn points(&self, who: &str, point: impl Fn(&Line) -> Option<(f64, f64)>) -> Vec<(f64, f64)> {
        let name = self.name(who);
        let good = |line: &&Line| line.who() == name && line.refused.is_none() && line.wrong_answers == 0;
        let mut points: Vec<(f64, f64)> = self.lines.iter().filter(good).filter_map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    }
}
