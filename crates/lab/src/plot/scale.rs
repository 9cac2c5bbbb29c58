//! Maps values to positions: the range of an axis, its ticks, and their labels.
//!
//! A linear vertical axis includes zero, and its upper end is a tick. A logarithmic axis ends at 1, 2 or 5 times a
//! power of ten, or at a power of two for bytes. Every range is finite and not empty, for any data.

use super::{Axis, unit};

/// The approximate number of ticks.
const TICKS: f64 = 6.0;

/// Whether a value can be drawn on the axis. Values beyond 10^200 are considered to be measurement errors and are not
/// drawn.
pub fn visible(value: f64, axis: &Axis) -> bool {
    value.abs() < 1e200 && (!axis.log || value > 1e-200)
}

/// An axis with the range and the ticks for given data.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// The low end of the range.
    pub low: f64,
    /// The high end of the range.
    pub high: f64,
    /// The labelled values within the range.
    pub ticks: Vec<(f64, String)>,
    log: bool,
}

impl Scale {
    /// Creates the horizontal axis: the range of the data, extended to zero if the range begins near zero. `padding`
    /// (half a bar) is added at both ends.
    pub fn across(axis: &Axis, values: impl Iterator<Item = f64>, padding: f64) -> Scale {
        let (low, high) = range(axis, values.chain(axis.names.iter().map(|name| name.0)));
        if !axis.names.is_empty() {
            let padding = padding.max(0.04 * (high - low));
            return Scale { low: low - padding, high: high + padding, ticks: axis.names.clone(), log: axis.log };
        }
        if axis.log {
            return Scale::log(axis, low, high);
        }
        let near_zero = low > 0.0 && low < 0.1 * high && padding == 0.0;
        let (low, high) = (if near_zero { 0.0 } else { low - padding }, high + padding);
        let step = step(low, high, &axis.unit);
        Scale { low, high, ticks: linear_ticks(low, high, step, &axis.unit), log: false }
    }

    /// Creates the vertical axis. A linear range includes zero and ends at a tick.
    pub fn up(axis: &Axis, values: impl Iterator<Item = f64>) -> Scale {
        if axis.log {
            let (low, high) = range(axis, values);
            return Scale::log(axis, low, high);
        }
        let seen = values.filter(|value| visible(*value, axis));
        let (low, high) = seen.fold((0.0, 0.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)));
        let high = if low == high { 1.0 } else { high };
        let step = step(low, high, &axis.unit);
        let (first, last) = ((low / step).floor(), (high / step - 1e-9).ceil());
        let (low, high) = (first * step, last.max(first + 1.0) * step);
        let ticks = if axis.names.is_empty() { linear_ticks(low, high, step, &axis.unit) } else { axis.names.clone() };
        Scale { low, high, ticks, log: false }
    }

    fn log(axis: &Axis, low: f64, high: f64) -> Scale {
        assert!(low > 0.0 && low < high, "a logarithmic range is positive and not empty");
        let ladder = if axis.unit == "B" { powers_of_two(low, high) } else { decades(low, high) };
        let (low, high) = (ladder[0], ladder[ladder.len() - 1]);
        let label = |value: &f64| (*value, unit::tick(*value, *value, &axis.unit));
        let coarse: Vec<f64> = ladder.iter().copied().filter(|value| leads(*value) || axis.unit == "B").collect();
        // Short ranges have ticks at 1, 2 and 5 times powers of ten. Longer ranges have ticks at powers of ten, or at
        // every nth power of ten.
        let shown = if ladder.len() <= 8 || coarse.len() < 2 { ladder } else { coarse };
        let every = shown.len().div_ceil(8);
        Scale { low, high, ticks: shown.iter().step_by(every).map(label).collect(), log: true }
    }

    /// The position of a value: 0 at the low end, 1 at the high end, below 0 or above 1 for values outside the range.
    pub fn place(&self, value: f64) -> f64 {
        debug_assert!(self.low < self.high, "not empty");
        if self.log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }
}

/// The lowest and highest visible value, widened to a range that is not empty.
fn range(axis: &Axis, values: impl Iterator<Item = f64>) -> (f64, f64) {
    let seen = values.filter(|value| visible(*value, axis));
    let (low, high) = seen.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    match (low <= high, axis.log) {
        (false, false) => (0.0, 1.0),
        (false, true) => (1.0, 10.0),
        (true, true) if low == high => ((low / 2.0).max(f64::MIN_POSITIVE), high * 2.0),
        (true, false) if low == high => (low - 0.5 * low.abs().max(1.0), high + 0.5 * high.abs().max(1.0)),
        (true, _) => (low, high),
    }
}

/// The distance between ticks: 1, 2 or 5 times a power of ten, or a power of two for bytes.
fn step(low: f64, high: f64, unit: &str) -> f64 {
    let wanted = (high - low) / TICKS;
    assert!(wanted > 0.0, "the range is not empty");
    if unit == "B" {
        return 2f64.powf(wanted.log2().ceil()).max(1.0);
    }
    let decade = 10f64.powf(wanted.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|digit| digit * decade).into_iter().find(|step| *step >= wanted * 0.999).unwrap_or(wanted)
}

fn linear_ticks(low: f64, high: f64, step: f64, unit: &str) -> Vec<(f64, String)> {
    let (first, last) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
    let value = |n: i64| n as f64 * step;
    (first..=last.min(first + 50)).map(|n| (value(n), unit::tick(value(n), step, unit))).collect()
}

/// The ladder of values for ticks: 1, 2 and 5 times powers of ten, from at most `low` to at least `high`.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let ten = |power: i32| format!("1e{power}").parse::<f64>().expect("a number");
    let ladder = (first..=last).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * ten(power)));
    within(ladder.filter(|value| value.is_finite() && *value > 0.0).collect(), low, high)
}

fn powers_of_two(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log2().floor() as i32, high.log2().ceil() as i32);
    within((first..=last).map(|power| 2f64.powi(power)).collect(), low, high)
}

/// The shortest part of the ladder that spans `low..=high`.
fn within(ladder: Vec<f64>, low: f64, high: f64) -> Vec<f64> {
    let first = ladder.iter().rposition(|value| *value <= low * (1.0 + 1e-9)).unwrap_or(0);
    let last = ladder.iter().position(|value| *value >= high * (1.0 - 1e-9)).unwrap_or(ladder.len() - 1);
    let last = if last > first { last } else { (first + 1).min(ladder.len() - 1) };
    ladder[first..=last].to_vec()
}

/// Whether a value of the ladder is a power of ten.
fn leads(value: f64) -> bool {
    (value.log10() - value.log10().round()).abs() < 1e-6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale) -> Vec<&str> {
        scale.ticks.iter().map(|tick| tick.1.as_str()).collect()
    }

    #[test]
    fn ticks_are_round_and_labelled() {
        let rates = Scale::up(&Axis::linear("rate", "operations/s"), [3_000.0, 47_000.0].into_iter());
        assert_eq!(labels(&rates), ["0", "10 k", "20 k", "30 k", "40 k", "50 k"]);
        let bytes = Scale::up(&Axis::linear("memory", "B"), [70e6].into_iter());
        assert_eq!(labels(&bytes), ["0 B", "16 MiB", "32 MiB", "48 MiB", "64 MiB", "80 MiB"]);
        let slow = Scale::up(&Axis::log("latency", "s"), [1.1e-6, 0.3].into_iter());
        assert_eq!(labels(&slow), ["1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms"]);
        assert_eq!((slow.low, slow.high), (1e-6, 0.5));
        let near = Scale::up(&Axis::log("latency", "s"), [1.1e-3, 4e-3].into_iter());
        assert_eq!(labels(&near), ["1 ms", "2 ms", "5 ms"]);
        let time = Scale::across(&Axis::linear("time", "s"), [0.0, 59.0].into_iter(), 0.0);
        assert_eq!(labels(&time), ["0 s", "10 s", "20 s", "30 s", "40 s", "50 s"]);
        assert_eq!(time.high, 59.0);
    }

    #[test]
    fn any_data_has_a_range() {
        let odd: [&[f64]; 8] =
            [&[], &[0.0], &[f64::NAN], &[f64::INFINITY, 5.0], &[-3.0], &[1e300, 1e-300], &[7.0, 7.0], &[f64::MAX]];
        for values in odd {
            for axis in [Axis::linear("a", "s"), Axis::log("a", "s"), Axis::log("a", "B"), Axis::linear("a", "B")] {
                for scale in
                    [Scale::up(&axis, values.iter().copied()), Scale::across(&axis, values.iter().copied(), 0.0)]
                {
                    assert!(scale.low < scale.high, "{values:?} on {axis:?}: {scale:?}");
                    assert!(scale.ticks.len() <= 60, "{scale:?}");
                    let inside = values.iter().filter(|value| visible(**value, &axis));
                    inside.for_each(|value| assert!((-1e-6..=1.000_001).contains(&scale.place(*value)), "{scale:?}"));
                }
            }
        }
    }
}
