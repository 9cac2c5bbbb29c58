//! A helper that several test files share.

use std::sync::mpsc;
use std::time::Duration;

/// The maximum time that `body` may take.
const LONGEST: Duration = Duration::from_secs(60);

/// Runs `body` on a thread of its own and fails if `body` does not end. This is for code whose failure would be an
/// endless loop or a wait without end.
pub fn ends(what: &str, body: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    match wait.recv_timeout(LONGEST) {
        Ok(()) => {}
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what} does not end"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("{what} panicked"),
    }
}
