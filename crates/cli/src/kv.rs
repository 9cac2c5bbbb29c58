//! The `kv` form: arbitrary bytes as text, for terminals, pipes and files.
//!
//! ```text
//! line  = key TAB value LF        key: one byte at least
//!
//! byte                            written as
//! TAB  LF  CR  backslash          \t  \n  \r  \\
//! other control characters        \xNN, two hexadecimal digits
//! bytes that are not UTF-8        \xNN
//! all other UTF-8                 themselves
//! ```
//!
//! Reading is strict, so that a mistake is reported instead of stored. A backslash must start one of the five escapes
//! (`\xNN` with digits in either case), and a line must have exactly one TAB. Raw control characters other than TAB and
//! LF are accepted unchanged, except that a CR immediately before the LF counts as a part of the line end. Arguments of
//! the command line use the same escapes.
//!
//! No line of data starts with `\!`: dumps use this prefix for their directives (`commands::dump`).

use std::io::{self, Write};

/// The reason why a text is not in the `kv` form.
pub type Malformed = String;

/// Appends `bytes` to `out` in escaped form, in one pass.
pub fn escape_into(out: &mut Vec<u8>, bytes: &[u8]) {
    if bytes.iter().all(|&b| is_plain(b)) {
        out.extend_from_slice(bytes);
        return;
    }
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            escape_char(out, c);
        }
        for &byte in chunk.invalid() {
            push_hex(out, byte);
        }
    }
}

/// Returns `bytes` in escaped form, for messages.
pub fn escaped(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len());
    escape_into(&mut out, bytes);
    String::from_utf8(out).expect("the escaped form is UTF-8")
}

/// Whether a byte is written without an escape in every context.
fn is_plain(byte: u8) -> bool {
    matches!(byte, 0x20..=0x7e) && byte != b'\\'
}

fn escape_char(out: &mut Vec<u8>, c: char) {
    let mut utf8 = [0; 4];
    match c {
        '\t' => out.extend_from_slice(b"\\t"),
        '\n' => out.extend_from_slice(b"\\n"),
        '\r' => out.extend_from_slice(b"\\r"),
        '\\' => out.extend_from_slice(b"\\\\"),
        c if c.is_control() => c.encode_utf8(&mut utf8).bytes().for_each(|byte| push_hex(out, byte)),
        c => out.extend_from_slice(c.encode_utf8(&mut utf8).as_bytes()),
    }
}

fn push_hex(out: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(&[b'\\', b'x', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
}

/// Decodes `text` and appends the bytes to `out`. After an error, `out` contains the bytes that were decoded before the
/// error.
pub fn unescape_into(out: &mut Vec<u8>, text: &[u8]) -> Result<(), Malformed> {
    let mut rest = text;
    while let Some(plain) = rest.iter().position(|&b| b == b'\\') {
        out.extend_from_slice(&rest[..plain]);
        let (byte, len) = decode_escape(&rest[plain..]).ok_or_else(|| {
            format!("unknown escape at byte {}: use \\t \\n \\r \\\\ or \\xNN", text.len() - rest.len() + plain + 1)
        })?;
        out.push(byte);
        rest = &rest[plain + len..];
    }
    out.extend_from_slice(rest);
    Ok(())
}

/// Decodes an argument of the command line.
pub fn unescape(text: &str) -> Result<Vec<u8>, Malformed> {
    let mut out = Vec::with_capacity(text.len());
    unescape_into(&mut out, text.as_bytes())?;
    Ok(out)
}

/// Decodes the escape at the start of `text`. Returns the byte, and the length of the escape.
fn decode_escape(text: &[u8]) -> Option<(u8, usize)> {
    debug_assert_eq!(text.first(), Some(&b'\\'));
    Some(match text.get(1)? {
        b't' => (b'\t', 2),
        b'n' => (b'\n', 2),
        b'r' => (b'\r', 2),
        b'\\' => (b'\\', 2),
        b'x' => {
            let digit = |i: usize| char::from(*text.get(i)?).to_digit(16);
            ((digit(2)? << 4 | digit(3)?) as u8, 4)
        }
        _ => return None,
    })
}

/// Writes one line.
pub fn write_line(out: &mut impl Write, key: &[u8], value: &[u8], scratch: &mut Vec<u8>) -> io::Result<()> {
    scratch.clear();
    escape_into(scratch, key);
    scratch.push(b'\t');
    escape_into(scratch, value);
    scratch.push(b'\n');
    out.write_all(scratch)
}

/// Reads one line (without its LF) into `key` and `value`, which are cleared first.
pub fn parse_line(line: &[u8], key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<(), Malformed> {
    key.clear();
    value.clear();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let Some(tab) = line.iter().position(|&b| b == b'\t') else {
        return Err("no TAB between key and value".into());
    };
    if line[tab + 1..].contains(&b'\t') {
        return Err("a second TAB: write \\t inside a key or value".into());
    }
    if tab == 0 {
        return Err("the key is empty".into());
    }
    unescape_into(key, &line[..tab]).map_err(|why| format!("key: {why}"))?;
    unescape_into(value, &line[tab + 1..]).map_err(|why| format!("value: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(key: &[u8], value: &[u8]) {
        let (mut line, mut scratch) = (Vec::new(), Vec::new());
        write_line(&mut line, key, value, &mut scratch).unwrap();
        assert_eq!(line.pop(), Some(b'\n'));
        assert!(!line.contains(&b'\n') && !line.contains(&b'\r') && !line.starts_with(b"\\!"));
        assert!(std::str::from_utf8(&line).is_ok());
        let (mut k, mut v) = (Vec::new(), Vec::new());
        parse_line(&line, &mut k, &mut v).unwrap();
        assert_eq!((k.as_slice(), v.as_slice()), (key, value));
    }

    #[test]
    fn every_byte_and_every_pair_of_bytes_survives() {
        for a in 0..=255 {
            round_trip(&[a], &[a]);
            for b in 0..=255 {
                round_trip(&[a, b], &[b, a, b]);
            }
        }
        let all: Vec<u8> = (0..=255).collect();
        round_trip(&all, &[]);
    }

    #[test]
    fn every_character_survives() {
        let all: String = (0..=u32::from(char::MAX)).filter_map(char::from_u32).collect();
        round_trip(all.as_bytes(), b"");
        for at in 0..=8 {
            round_trip(&all.as_bytes()[at..4096 + at], b"cut inside a character");
        }
    }

    #[test]
    fn the_escaped_form_does_not_change() {
        let mut out = Vec::new();
        escape_into(&mut out, b"a\tb\nc\rd\\e\0f\x7fg\xffh\xc3\xa9\xc2\x80");
        assert_eq!(out, "a\\tb\\nc\\rd\\\\e\\x00f\\x7fg\\xffhé\\xc2\\x80".as_bytes());
    }

    #[test]
    fn escapes_are_strict() {
        for bad in ["\\", "\\q", "\\x", "\\x1", "\\xg0", "a\\", "\\!"] {
            assert!(unescape(bad).is_err(), "{bad}");
        }
        assert_eq!(unescape("\\xfF\\x00").unwrap(), [0xff, 0]);
        assert!(unescape("ab\\q").unwrap_err().contains("byte 3"));
    }

    #[test]
    fn malformed_lines_are_refused() {
        let (mut k, mut v) = (Vec::new(), Vec::new());
        for bad in ["no tab", "\tvalue", "a\tb\tc", "a\\\tb", "a\tb\\", "\\!end\t1"] {
            assert!(parse_line(bad.as_bytes(), &mut k, &mut v).is_err(), "{bad}");
        }
        parse_line(b"key\tvalue\r", &mut k, &mut v).unwrap();
        assert_eq!((k.as_slice(), v.as_slice()), (&b"key"[..], &b"value"[..]));
    }
}
