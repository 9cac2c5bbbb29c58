//! Failures of commands. A failure determines one of seven exit codes and prints one line on stderr.
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | done |
//! | 1 | the key, the keyspace or the store was not found |
//! | 2 | misuse: an invalid argument, input or operation |
//! | 3 | corruption: a store or a dump does not contain the bytes that were written |
//! | 4 | input/output: a device error, a full disk, a store that another process has open |
//! | 5 | a salvage is complete, but some data is lost |
//! | 130 | interrupted by Ctrl-C or SIGTERM |

use std::{fmt, io, process::ExitCode};

use pandodb::Error;

/// The reason why a command stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A key, keyspace, store or file does not exist. Exit code 1.
    NotFound(String),
    /// An argument, an input or an operation is invalid. Exit code 2.
    Misuse(String),
    /// Data is damaged. Exit code 3.
    Corruption(String),
    /// The device or the operating system returned an error. Exit code 4.
    Io(String),
    /// Another process has the store open. Exit code 4.
    InUse(String),
    /// A salvage copied a part of the data; the rest is lost. Exit code 5.
    Lost(String),
    /// A signal ended the command between two commits. Exit code 130.
    Interrupted(String),
    /// The reader of stdout closed the pipe, as in `pando scan … | head`. Not an error.
    PipeClosed,
    /// `--help` and `--version`, which print their text to stdout. Not an error.
    Help(String),
}

/// The result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// The exit code that shells report for a process that Ctrl-C ended.
    pub const INTERRUPTED: u8 = 130;

    /// The exit code of the process.
    pub fn code(&self) -> u8 {
        match self {
            Failure::PipeClosed | Failure::Help(_) => 0,
            Failure::NotFound(_) => 1,
            Failure::Misuse(_) => 2,
            Failure::Corruption(_) => 3,
            Failure::Io(_) | Failure::InUse(_) => 4,
            Failure::Lost(_) => 5,
            Failure::Interrupted(_) => Failure::INTERRUPTED,
        }
    }

    /// Prints the line on stderr and returns the exit code.
    pub fn report(&self) -> ExitCode {
        match self {
            Failure::PipeClosed => {}
            Failure::Help(text) => print!("{text}"),
            _ => eprintln!("pando: {self}"),
        }
        ExitCode::from(self.code())
    }

    /// Returns the same failure with `context` in front of the message.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Failure {
        let with = |message: String| format!("{context}: {message}");
        match self {
            Failure::NotFound(message) => Failure::NotFound(with(message)),
            Failure::Misuse(message) => Failure::Misuse(with(message)),
            Failure::Corruption(message) => Failure::Corruption(with(message)),
            Failure::Io(message) => Failure::Io(with(message)),
            Failure::InUse(message) => Failure::InUse(with(message)),
            Failure::Lost(message) => Failure::Lost(with(message)),
            Failure::Interrupted(message) => Failure::Interrupted(with(message)),
            other @ (Failure::PipeClosed | Failure::Help(_)) => other,
        }
    }

    /// The failure for an error of the operating system during `what`.
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::PipeClosed,
            io::ErrorKind::NotFound => Failure::NotFound(format!("{what}: {error}")),
            _ => Failure::Io(format!("{what}: {error}")),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = match self {
            Failure::NotFound(m) | Failure::Misuse(m) | Failure::Corruption(m) | Failure::Io(m) => m,
            Failure::InUse(m) | Failure::Lost(m) | Failure::Interrupted(m) | Failure::Help(m) => m,
            Failure::PipeClosed => "the reader of the output closed the pipe",
        };
        // File names and system messages may contain line breaks; the output is one line.
        for c in message.chars() {
            if c.is_control() { write!(f, "{}", c.escape_default())? } else { write!(f, "{c}")? }
        }
        Ok(())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let message = error.to_string();
        match error {
            Error::NoKeyspace { .. } => Failure::NotFound(message),
            Error::InvalidArgument { .. }
            | Error::Unsupported { .. }
            | Error::NotAStore { .. }
            | Error::OperatorMissing { .. }
            | Error::ReadOnly => Failure::Misuse(message),
            Error::Locked { .. } => {
                Failure::InUse(format!("{message} (`pando stats`, `keyspaces` and `inspect` work while it is open)"))
            }
            Error::Corruption { .. } | Error::OperatorFailed { .. } => Failure::Corruption(message),
            _ => Failure::Io(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_of_the_store_has_its_exit_code() {
        let code = |error: Error| Failure::from(error).code();
        assert_eq!(code(Error::NoKeyspace { name: "k".into() }), 1);
        assert_eq!(code(Error::invalid("x")), 2);
        assert_eq!(code(Error::corruption("leaf block", 7, "x")), 3);
        assert_eq!(code(Error::DiskFull { op: "write" }), 4);
        assert_eq!(code(Error::Locked { path: "p".into() }), 4);
        assert_eq!(code(Error::Poisoned { first: "x".into() }), 4);
    }

    #[test]
    fn a_message_is_one_line() {
        let failure = Failure::Misuse("a\nb".into()).context("file\r");
        assert_eq!(failure.to_string(), "file\\r: a\\nb");
    }

    #[test]
    fn a_closed_pipe_is_not_an_error() {
        assert_eq!(Failure::io("x", &io::ErrorKind::BrokenPipe.into()).code(), 0);
    }
}
