//! Formats numbers with three significant digits, a prefix and a unit.
//!
//! Bytes (`B`) have binary prefixes, as budgets do. Seconds have the prefixes down to nanoseconds, but none for large
//! values, such as kiloseconds. Other units have decimal prefixes for values above one, but no prefixes for values
//! below one, because a ratio of `50 m` would read as metres.

/// Formats a value, with its unit if the unit is `B`, `s` or `%`: `1.5 ms`, `64 MiB`, `12.3 k`, `0.05`, `87 %`. A value
/// that is not finite becomes `–`.
pub fn show(value: f64, unit: &str) -> String {
    with_digits(value, unit, 3)
}

/// Formats like [`show`], with enough digits to distinguish ticks at the distance `step`.
pub fn tick(value: f64, step: f64, unit: &str) -> String {
    let ratio = (value / step).abs();
    let needed = if ratio.is_finite() && ratio > 1.0 { ratio.log10().floor() as usize + 2 } else { 2 };
    with_digits(value, unit, needed.clamp(3, 9))
}

/// Formats a bare number like [`show`].
pub fn count(value: f64) -> String {
    show(value, "")
}

/// Formats microseconds like [`show`], as seconds with a prefix.
pub fn micros(value: f64) -> String {
    show(value * 1e-6, "s")
}

fn with_digits(value: f64, unit: &str, digits: usize) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let (base, up, down): (f64, &[&str], &[&str]) = match unit {
        "B" => (1024.0, &["", "Ki", "Mi", "Gi", "Ti", "Pi"], &[]),
        "s" => (1000.0, &[""], &["m", "µ", "n"]),
        _ => (1000.0, &["", "k", "M", "G", "T"], &[]),
    };
    // The power of the base at which the printed number is at least 1 and less than the base.
    let written = |power: i32| {
        let number = value / base.powi(power);
        rounded(number, if base > 1000.0 && number.abs() >= 1000.0 { digits.max(4) } else { digits })
    };
    let mut power = 0;
    while power + 1 < up.len() as i32 && written(power).abs() >= base {
        power += 1;
    }
    while value != 0.0 && -power < down.len() as i32 && written(power).abs() < 1.0 {
        power -= 1;
    }
    let prefix = if power < 0 { down[(-power - 1) as usize] } else { up[power as usize] };
    let number = plain(written(power), digits);
    let unit = if ["B", "s", "%"].contains(&unit) { unit } else { "" };
    if prefix.is_empty() && unit.is_empty() { number } else { format!("{number} {prefix}{unit}") }
}

/// Formats `value` with the given number of significant digits.
fn rounded(value: f64, digits: usize) -> f64 {
    format!("{value:.*e}", digits.saturating_sub(1)).parse().unwrap_or(value)
}

/// Formats a number without trailing zeros. Small numbers have an exponent.
fn plain(value: f64, digits: usize) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if value.abs() < 1e-4 {
        return format!("{value:e}");
    }
    let whole = value.abs().log10().floor() as i32 + 1;
    let text = format!("{value:.*}", (digits as i32 - whole).max(0) as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_a_prefix_and_a_unit() {
        for (value, unit, text) in [
            (0.0, "", "0"),
            (10_000.0, "", "10 k"),
            (1_000_000.0, "operations/s", "1 M"),
            (999_950.0, "", "1 M"),
            (12_345.0, "", "12.3 k"),
            (0.05, "", "0.05"),
            (1e-6, "", "1e-6"),
            (0.0015, "s", "1.5 ms"),
            (1e-6, "s", "1 µs"),
            (1e-3, "s", "1 ms"),
            (1200.0, "s", "1200 s"),
            (-0.25, "s", "-250 ms"),
            (67_108_864.0, "B", "64 MiB"),
            (1000.0, "B", "1000 B"),
            (1023.0, "B", "1023 B"),
            (1023.9, "B", "1 KiB"),
            (1_073_741_824.0, "B", "1 GiB"),
            (87.26, "%", "87.3 %"),
            (f64::NAN, "s", "–"),
            (f64::INFINITY, "", "–"),
        ] {
            assert_eq!(show(value, unit), text, "{value} {unit}");
        }
        assert_eq!(tick(1_002_500.0, 500.0, ""), "1.0025 M");
        assert_eq!(micros(1500.0), "1.5 ms");
        assert_eq!(count(0.3), "0.3");
    }
}
