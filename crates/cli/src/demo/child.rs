//! The second load: a child process that is killed while it writes, and the parent that kills it.
//!
//! ```text
//! parent                                 child
//! spawn ───────────────────────────────▶ open, load from the first flight on
//! read   ◀─────────── acked 500 ──────── each line after its flights are committed
//! read   ◀─────────── acked 1000 ───────
//! …
//! SIGKILL ─────────────────────────────▶ ✗
//! read the rest of the pipe: the last complete line is the last acknowledgement
//! ```

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use super::{
    flights::{self, FLIGHTS},
    ledger::Ledger,
};
use crate::{
    args::DemoChildArgs,
    failure::{Failure, Outcome},
    meter::Latencies,
    output,
};

/// The child prints an acknowledgement each time it has committed this number of flights.
const ACK_EVERY: usize = 500;
/// The parent kills the child when this number of flights is acknowledged and [`KILL_DELAY`] has passed after that.
const KILL_AT: usize = FLIGHTS * 2 / 5;
/// The delay between the last awaited acknowledgement and the kill.
const KILL_DELAY: Duration = Duration::from_millis(5);

/// Runs the child, which loads and acknowledges flights until the parent kills it.
pub fn run(args: &DemoChildArgs) -> Outcome {
    let ledger = Ledger::open(&args.store)?;
    let mut latencies = Latencies::new();
    for (index, flight) in flights::read()?.iter().enumerate() {
        ledger.record(flight, 2, index, &mut latencies)?;
        if (index + 1).is_multiple_of(ACK_EVERY) {
            output::line(format_args!("acked {}", index + 1))?;
        }
    }
    ledger.close()
}

/// Kills the child process when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the second load on `store` and kills it in the middle. Returns the number of acknowledged flights.
///
/// # Errors
/// If the child cannot be started, or if it ends before the kill.
pub fn load_and_kill(store: &Path) -> Outcome<usize> {
    let failed = |e: std::io::Error| Failure::io("running the child process of the demo", &e);
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.arg("demo-child").arg(store).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = Killed(command.spawn().map_err(failed)?);
    let pipe = child.0.stdout.take().expect("stdout was asked to be piped");
    let mut acks = BufReader::new(pipe);
    let mut acked = 0;
    while acked < KILL_AT {
        acked = next_ack(&mut acks).map_err(failed)?.ok_or_else(too_early)?;
    }
    // The delay makes it likely that the kill happens between two acknowledgements.
    std::thread::sleep(KILL_DELAY);
    child.0.kill().map_err(failed)?;
    let status = child.0.wait().map_err(failed)?;
    while let Some(later) = next_ack(&mut acks).map_err(failed)? {
        acked = later;
    }
    if status.success() { Err(too_early()) } else { Ok(acked) }
}

fn too_early() -> Failure {
    Failure::Io("the child of the demo ended before it was killed; see its message above".into())
}

/// The next acknowledgement, or `None` at the end of the output or at a line that the kill truncated.
fn next_ack(acks: &mut impl BufRead) -> std::io::Result<Option<usize>> {
    let mut line = String::new();
    acks.read_line(&mut line)?;
    Ok(line.strip_suffix('\n').and_then(|line| line.strip_prefix("acked ")?.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_line_is_not_an_acknowledgement() {
        let mut acks = &b"acked 500\nacked 1000\nacked 15"[..];
        assert_eq!(next_ack(&mut acks).unwrap(), Some(500));
        assert_eq!(next_ack(&mut acks).unwrap(), Some(1000));
        assert_eq!(next_ack(&mut acks).unwrap(), None);
    }
}
