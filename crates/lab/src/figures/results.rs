//! [`Results`]: all lines of a figure, and the questions that claims and plots ask them.

use super::probe::Bandwidth;
use super::{Figure, OURS, Scale, Step};
use crate::engine::Mode;
use crate::line::Line;
use crate::workload::{Kind, Workload};

/// A value, or why there is none.
pub type Answer = std::result::Result<f64, String>;

/// Whether a line is of our own engine, in either mode.
pub fn is_ours(line: &Line) -> bool {
    line.engine == "pando"
}

/// Everything measured for a figure in one mode.
#[derive(Debug)]
pub struct Results {
    /// Which figure.
    pub figure: &'static Figure,
    /// How large.
    pub scale: Scale,
    /// Lines, ours and those of rivals.
    pub lines: Vec<Line>,
    /// Given lines that fit no step.
    pub set_aside: usize,
    /// What the device can do, if the figure asks.
    pub device: Option<Bandwidth>,
}

/// Whether a line answers a step: the same workload, sizes, memory, caches, rate and threads; of our own, the same durability.
pub fn fits(line: &Line, step: &Step) -> bool {
    let plan = &step.plan;
    let mixed = Workload::find(&line.workload).is_some_and(|workload| workload.kind == Kind::LoadMixed);
    plan.workloads.iter().any(|workload| workload.name == line.workload)
        && line.asked.records == plan.records
        && (line.asked.key_len, line.asked.value_len) == (plan.key_len, plan.value_len)
        && line.asked.memory_budget == plan.setup.memory_budget as u64
        && line.threads == plan.threads
        && (line.mode == plan.setup.mode || !is_ours(line))
        && line.asked.cache == plan.cache.name()
        && line.asked.rate == plan.rate.unwrap_or(0.0)
        && line.asked.deterministic == plan.setup.deterministic
        && (!mixed || line.asked.seq_share == plan.seq_share)
        && (!is_ours(line) || durability(line) == format!("{:?}", step.durability))
}

fn durability(line: &Line) -> &str {
    line.configuration.get("durability").map_or("Buffered", String::as_str)
}

/// Whether a line of ours was written with the log on, as everyone else's.
pub fn is_logged(line: &Line) -> bool {
    !is_ours(line) || durability(line) != "None"
}

/// The rate of a line until nothing is owed.
pub fn rate(line: &Line) -> f64 {
    line.fair_ops_per_s()
}

/// Bytes of the keys and values that operations put, or of those that they found.
fn user_bytes(line: &Line) -> f64 {
    (line.ops.max(line.found) * (line.asked.key_len + line.asked.value_len) as u64) as f64
}

/// Bytes read and written by the bytes of keys and values: of a load, of lookups, of scans. Not of a mix of reads and
/// writes, whose amplifications have different bases.
pub fn io_amplification(line: &Line) -> f64 {
    line.write_amplification + line.read_bytes_per_op * line.ops as f64 / user_bytes(line)
}

/// Write amplification of a load of ours without what went into the log.
pub fn without_log(line: &Line) -> Answer {
    let log = line.inside.counters.get("device.log.write_bytes").ok_or("the log's bytes are not known")?;
    Ok(line.write_amplification - *log as f64 / user_bytes(line))
}

/// Bytes a second that went from and to the device while operations were done.
pub fn io_bytes_per_s(line: &Line) -> f64 {
    let seconds = line.seconds.max(line.settled_seconds);
    if seconds > 0.0 { io_amplification(line) * user_bytes(line) / seconds } else { 0.0 }
}

/// Bytes a second that scans returned.
pub fn scanned_bytes_per_s(line: &Line) -> f64 {
    let record = (line.asked.key_len + line.asked.value_len) as f64;
    if line.seconds > 0.0 { line.found as f64 * record / line.seconds } else { 0.0 }
}

impl Results {
    /// Who that is in this mode, if it is [`OURS`].
    fn name<'a>(&self, who: &'a str) -> &'a str {
        match (who, self.scale.mode) {
            (OURS, Mode::Paper) => "pando-stbe-paper",
            _ => who,
        }
    }

    /// Who was measured, we first.
    pub fn whos(&self) -> Vec<String> {
        let mut whos: Vec<String> = self.lines.iter().map(Line::who).collect();
        whos.sort_by_key(|who| (who != self.name(OURS), who.clone()));
        whos.dedup();
        whos
    }

    /// The line of someone for which `is` holds, the one with the median rate if there are several.
    ///
    /// # Errors
    /// Why there is none: not measured, refused, or wrong.
    pub fn one(&self, who: &str, is: impl Fn(&Line) -> bool) -> std::result::Result<&Line, String> {
        let name = self.name(who);
        let all: Vec<&Line> = self.lines.iter().filter(|line| line.who() == name && is(line)).collect();
        let mut good: Vec<&Line> =
            all.iter().copied().filter(|line| line.refused.is_none() && line.wrong_answers == 0).collect();
        good.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
        if let Some(line) = good.get(good.len().saturating_sub(1) / 2) {
            return Ok(line);
        }
        match all.first() {
            Some(line) if line.wrong_answers > 0 => Err("wrong answers".to_owned()),
            Some(line) => Err(line.refused.clone().unwrap_or_default()),
            None if who == OURS => Err("not measured".to_owned()),
            None => Err(format!("needs lines of {who}")),
        }
    }

    /// Someone's line of a workload.
    ///
    /// # Errors
    /// As [`Results::one`].
    pub fn of(&self, who: &str, workload: &str) -> std::result::Result<&Line, String> {
        self.one(who, |line| line.workload == workload)
    }

    /// Our rate by a rival's.
    pub fn by_rival(&self, rival: &str, workload: &str) -> Answer {
        Ok(rate(self.of(OURS, workload)?) / rate(self.of(rival, workload)?))
    }

    /// What the device can do.
    ///
    /// # Errors
    /// If it was not asked.
    pub fn device(&self) -> std::result::Result<&Bandwidth, String> {
        self.device.as_ref().ok_or_else(|| "the device was not probed".to_owned())
    }

    /// Points of someone's lines: x and y of each that has both, in the order of x.
    pub fn points(&self, who: &str, point: impl Fn(&Line) -> Option<(f64, f64)>) -> Vec<(f64, f64)> {
        let name = self.name(who);
        let good = |line: &&Line| line.who() == name && line.refused.is_none() && line.wrong_answers == 0;
        let mut points: Vec<(f64, f64)> = self.lines.iter().filter(good).filter_map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    }
}
