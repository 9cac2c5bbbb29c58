//! Reads numbered lines of bounded length.

use std::io::{self, BufRead};

/// The length in bytes of the longest line that is read: the line of the longest key and the longest value, with every
/// byte written as `\xNN`.
pub const MAX_LINE: usize = 4 * (pandodb::base::MAX_VALUE + pandodb::base::MAX_KEY) + 2;

/// The message about a line that is longer than the limit.
pub const TOO_LONG: &str = "the line is longer than any record";

/// A line of the input.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// The line without its LF. Empty lines, including lines with only a CR, are skipped.
    Text(&'a [u8]),
    /// A line that is longer than [`MAX_LINE`] and was skipped.
    TooLong,
    /// The end of the input.
    End,
}

/// A reader of lines.
#[derive(Debug)]
pub struct Lines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
    limit: usize,
}

impl<R: BufRead> Lines<R> {
    /// Creates a reader of `input`, which starts at the first line.
    pub fn new(input: R) -> Lines<R> {
        Lines::with_limit(input, MAX_LINE)
    }

    /// Creates a reader of `input` with another limit, in bytes.
    pub fn with_limit(input: R, limit: usize) -> Lines<R> {
        Lines { input, line: Vec::new(), number: 0, limit }
    }

    /// The number of the last line that was read, counted from 1; 0 before the first line.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The next line that is not empty.
    pub fn next(&mut self) -> io::Result<Line<'_>> {
        loop {
            self.line.clear();
            let mut bounded = io::Read::take(&mut self.input, self.limit as u64 + 1);
            if bounded.read_until(b'\n', &mut self.line)? == 0 {
                return Ok(Line::End);
            }
            self.number += 1;
            if self.line.last() == Some(&b'\n') {
                self.line.pop();
            } else if self.line.len() > self.limit {
                self.input.skip_until(b'\n')?;
                return Ok(Line::TooLong);
            }
            if !matches!(self.line.as_slice(), b"" | b"\r") {
                return Ok(Line::Text(&self.line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbered_and_bounded() {
        let mut lines = Lines::with_limit(&b"ab\n\n\r\nabcd\nabcde\nabcdef\nx"[..], 5);
        assert_eq!(lines.next().unwrap(), Line::Text(b"ab"));
        assert_eq!(lines.next().unwrap(), Line::Text(b"abcd"));
        assert_eq!(lines.number(), 4);
        assert_eq!(lines.next().unwrap(), Line::Text(b"abcde"));
        assert_eq!(lines.next().unwrap(), Line::TooLong);
        assert_eq!(lines.number(), 6);
        assert_eq!(lines.next().unwrap(), Line::Text(b"x"));
        assert_eq!(lines.next().unwrap(), Line::End);
    }
}
