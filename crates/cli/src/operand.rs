//! Converts between decimal numbers on the command line and little-endian integers in the store.
//!
//! The values of the operators `add_u64` and `add_i64` are little-endian integers of eight bytes, and their operands
//! are entered as decimal numbers. The operands of all other operators are entered as bytes.

use clap::ValueEnum;

/// The number format in which a value is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ValueForm {
    /// Eight bytes, little-endian, as an unsigned decimal number.
    U64,
    /// Eight bytes, little-endian, as a signed decimal number.
    I64,
}

impl ValueForm {
    /// Formats `value` as a decimal number.
    ///
    /// # Errors
    /// A message, if `value` is not eight bytes long.
    pub fn print(self, value: &[u8]) -> Result<String, String> {
        let bytes: [u8; 8] = value
            .try_into()
            .map_err(|_| format!("the value has {} bytes, but a number has 8; print it without --as", value.len()))?;
        Ok(match self {
            ValueForm::U64 => u64::from_le_bytes(bytes).to_string(),
            ValueForm::I64 => i64::from_le_bytes(bytes).to_string(),
        })
    }
}

/// The form in which users enter the operands of a merge operator on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandForm {
    /// The bytes of the entered text are the operand.
    Raw,
    /// A decimal number from 0 to 2⁶⁴ − 1.
    U64,
    /// A decimal number from −2⁶³ to 2⁶³ − 1.
    I64,
}

impl OperandForm {
    /// The form of the operands of the operator with this name.
    pub fn of(operator: &str) -> OperandForm {
        match operator {
            "add_u64" => OperandForm::U64,
            "add_i64" => OperandForm::I64,
            _ => OperandForm::Raw,
        }
    }

    /// Converts the text that a user entered into the bytes of the operand, in place.
    ///
    /// # Errors
    /// A message, if the operator needs a number and `text` is not a number.
    pub fn encode(self, text: &mut Vec<u8>) -> Result<(), String> {
        let bytes = match self {
            OperandForm::Raw => return Ok(()),
            OperandForm::U64 => number::<u64>(text)?.to_le_bytes(),
            OperandForm::I64 => number::<i64>(text)?.to_le_bytes(),
        };
        text.clear();
        text.extend_from_slice(&bytes);
        Ok(())
    }
}

fn number<N: std::str::FromStr>(text: &[u8]) -> Result<N, String> {
    let trimmed = text.trim_ascii();
    std::str::from_utf8(trimmed).ok().and_then(|digits| digits.parse().ok()).ok_or_else(|| {
        format!(
            "`{}` is not a decimal number in the operator's range",
            crate::kv::escaped(&trimmed[..trimmed.len().min(40)])
        )
    })
}

/// Parses a size such as `256MiB`, `64M`, `1.5GiB` or `4096`. Returns the size in bytes. `K`, `M`, `G` and `T` without
/// a `B` mean powers of 1,024, as `KiB` and so on; `KB`, `MB`, `GB` and `TB` mean powers of 1,000.
///
/// # Errors
/// A message, if the text is not a size.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let unit: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1024.0 * 1024.0,
        "g" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "t" | "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        _ => return Err(format!("`{text}` is not a size; write 64MiB, 1GiB or a number of bytes")),
    };
    let number: f64 =
        digits.parse().map_err(|_| format!("`{text}` is not a size; write 64MiB or a number of bytes"))?;
    let bytes = number * unit;
    // A floating-point number of 64 bits does not represent every integer above 2⁵³. Realistic sizes are smaller.
    if bytes.is_finite() && (1.0..9_007_199_254_740_992.0).contains(&bytes) {
        Ok(bytes as usize)
    } else {
        Err(format!("`{text}` is out of range for a size"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_the_round_trip() {
        for n in [i64::MIN, -1, 0, 1, i64::MAX] {
            let mut text = n.to_string().into_bytes();
            OperandForm::of("add_i64").encode(&mut text).unwrap();
            assert_eq!(ValueForm::I64.print(&text).unwrap(), n.to_string());
        }
        let mut text = b" 18446744073709551615 ".to_vec();
        OperandForm::of("add_u64").encode(&mut text).unwrap();
        assert_eq!(ValueForm::U64.print(&text).unwrap(), u64::MAX.to_string());
    }

    #[test]
    fn text_that_is_not_a_number_is_refused() {
        for bad in ["", "x", "-1", "1.0", "18446744073709551616"] {
            assert!(OperandForm::U64.encode(&mut bad.as_bytes().to_vec()).is_err(), "{bad}");
        }
        assert!(ValueForm::U64.print(b"seven b").is_err());
        let mut raw = b"-x".to_vec();
        OperandForm::of("append").encode(&mut raw).unwrap();
        assert_eq!(raw, b"-x");
    }

    #[test]
    fn sizes_are_parsed_with_their_units() {
        assert_eq!(parse_size("256MiB"), Ok(256 << 20));
        assert_eq!(parse_size("64m"), Ok(64 << 20));
        assert_eq!(parse_size("1.5 GiB"), Ok(3 << 29));
        assert_eq!(parse_size("2GB"), Ok(2_000_000_000));
        assert_eq!(parse_size("4096"), Ok(4096));
        for bad in ["", "MiB", "-1", "0", "1XB", "9e9", "99999999TiB", "1.2.3"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
