//! The queries of the demo. The demo compares the result of each query on the store with the result computed from the
//! plain file.

use super::{
    flights::Flight,
    ledger::{Counters, Ledger},
    stage::Stage,
};
use crate::{failure::Outcome, output};

/// The flight of the point query.
const POINT: usize = 100_000;
/// The hours of the range query.
const MORNING: (&str, &str) = ("2001-02-14T06:00", "2001-02-14T09:00");

/// Runs all queries.
pub fn ask(stage: &mut Stage, ledger: &Ledger, flights: &[Flight]) -> Outcome {
    point(stage, ledger, flights)?;
    range(stage, ledger, flights)?;
    last(stage, ledger, flights)?;
    counter(stage, ledger, flights)
}

/// Reads one flight by its key.
fn point(stage: &mut Stage, ledger: &Ledger, flights: &[Flight]) -> Outcome {
    let flight = &flights[POINT];
    let found = ledger.events.get(flight.key(1, POINT))?;
    let same = found.as_deref() == Some(flight.row().as_bytes());
    let Flight { time, origin, destination, delay, .. } = flight;
    let late = if *delay < 0 { "early" } else { "late" };
    let delay = delay.unsigned_abs();
    stage.check("point", same, format!("the {time} from {origin} to {destination} came {delay} min {late}"))
}

/// Reads all flights of a morning, in order.
fn range(stage: &mut Stage, ledger: &Ledger, flights: &[Flight]) -> Outcome {
    let (from, to) = MORNING;
    let mut answer = Vec::new();
    for entry in ledger.events.range(from..to) {
        let (key, value) = entry?;
        answer.push((key.to_vec(), value.to_vec()));
    }
    let morning = flights.iter().enumerate().filter(|(_, flight)| (from..to).contains(&flight.time.as_str()));
    let mut plain: Vec<(Vec<u8>, Vec<u8>)> =
        morning.map(|(i, flight)| (flight.key(1, i).into_bytes(), flight.row().into_bytes())).collect();
    plain.sort();
    let count = output::count(answer.len() as u64);
    stage.check("range", answer == plain, format!("{count} flights left on 14 February from 06:00 to 09:00"))
}

/// Reads the last flight by a reverse scan.
fn last(stage: &mut Stage, ledger: &Ledger, flights: &[Flight]) -> Outcome {
    let found = ledger.events.range(MORNING.0..).next_back().transpose()?;
    let key = found.map(|(key, _)| String::from_utf8_lossy(&key).into_owned()).unwrap_or_default();
    let plain = flights.iter().enumerate().map(|(i, flight)| flight.key(1, i)).max();
    let time = key.split('|').next().unwrap_or_default().to_owned();
    stage.check("reverse", Some(key) == plain, format!("the last flight left at {time}"))
}

/// Reads all counters, and prints the busiest airport.
fn counter(stage: &mut Stage, ledger: &Ledger, flights: &[Flight]) -> Outcome {
    let answer = ledger.counters()?;
    let mut plain = Counters::default();
    flights.iter().for_each(|flight| plain.add(flight));
    let busiest = answer.departures.iter().max_by_key(|(_, departures)| **departures);
    let (airport, departures) = busiest.map_or(("none", 0), |(airport, n)| (airport.as_str(), *n));
    let late = answer.delays.get(airport).map_or(0.0, |minutes| *minutes as f64 / departures.max(1) as f64);
    let departures = output::count(departures);
    let shown = format!("{airport} is busiest: {departures} departures, {late:.1} min late on average");
    stage.check("counter", answer == plain, shown)
}
