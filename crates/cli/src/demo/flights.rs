//! The data set: 231,083 flights of early 2001. The binary contains it as a gzip file.
//!
//! `data/README.md` states the source and the licence of the file, and how the file was made. A line is
//! `MMDDHHMM,delay,distance,origin,destination`; delays are in minutes and may be negative, and distances are in miles.

use std::io::{BufRead, BufReader};

use flate2::bufread::GzDecoder;

use crate::failure::{Failure, Outcome};

/// The gzip file.
static PACKED: &[u8] = include_bytes!("../../data/flights.csv.gz");

/// The number of flights.
pub const FLIGHTS: usize = 231_083;

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flight {
    /// The time of departure, `2001-MM-DDTHH:MM`.
    pub time: String,
    /// The delay on arrival in minutes.
    pub delay: i64,
    /// The distance in miles.
    pub distance: u32,
    /// The airport of departure.
    pub origin: String,
    /// The airport of arrival.
    pub destination: String,
}

impl Flight {
    /// The key of the flight in `events`: time, airport, number of the load (`pass`), line of the file. Keys are
    /// ordered by time.
    pub fn key(&self, pass: u8, index: usize) -> String {
        format!("{}|{}|{pass}|{index:06}", self.time, self.origin)
    }

    /// The value of the flight in `events`.
    pub fn row(&self) -> String {
        format!("{},{},{}", self.delay, self.distance, self.destination)
    }

    /// The day of departure, `2001-MM-DD`.
    pub fn day(&self) -> &str {
        &self.time[..10]
    }
}

/// Parses a key in `events`: the number of the load and the line of the file.
pub fn parse_key(key: &[u8]) -> Option<(u8, usize)> {
    let mut parts = std::str::from_utf8(key).ok()?.rsplit('|');
    let index = parts.next()?.parse().ok()?;
    let pass = parts.next()?.parse().ok()?;
    Some((pass, index))
}

/// Decompresses and parses the file.
///
/// # Errors
/// [`Failure::Corruption`] if the copy of the file in the binary is damaged.
pub fn read() -> Outcome<Vec<Flight>> {
    let damaged = |line: usize| {
        Failure::Corruption(format!(
            "the flight data inside this program is damaged at line {line}; build the program again"
        ))
    };
    let mut flights = Vec::with_capacity(FLIGHTS);
    for (i, line) in BufReader::new(GzDecoder::new(PACKED)).lines().enumerate().skip(1) {
        let line = line.map_err(|_| damaged(i + 1))?;
        flights.push(parse(&line).ok_or_else(|| damaged(i + 1))?);
    }
    if flights.len() != FLIGHTS {
        return Err(damaged(flights.len() + 1));
    }
    Ok(flights)
}

fn parse(line: &str) -> Option<Flight> {
    let mut fields = line.split(',');
    let date = fields.next().filter(|date| date.len() == 8 && date.bytes().all(|b| b.is_ascii_digit()))?;
    let flight = Flight {
        time: format!("2001-{}-{}T{}:{}", &date[..2], &date[2..4], &date[4..6], &date[6..]),
        delay: fields.next()?.parse().ok()?,
        distance: fields.next()?.parse().ok()?,
        origin: fields.next()?.to_owned(),
        destination: fields.next()?.to_owned(),
    };
    fields.next().is_none().then_some(flight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_complete() {
        let flights = read().unwrap();
        assert_eq!(flights[0].key(1, 0), "2001-01-01T00:01|MCI|1|000000");
        assert_eq!(flights[0].row(), "14,405,MDW");
        assert_eq!(flights[FLIGHTS - 1].time, "2001-03-31T22:57");
        assert!(flights.iter().any(|flight| flight.delay < 0));
    }

    #[test]
    fn keys_are_parsed() {
        assert_eq!(parse_key(b"2001-01-01T00:01|MCI|2|000017"), Some((2, 17)));
        assert_eq!(parse_key(b"x"), None);
    }
}
