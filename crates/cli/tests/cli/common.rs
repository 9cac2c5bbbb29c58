//! Running the binary.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// A directory that goes away, with a path for a store in it.
pub struct Place {
    /// The directory.
    pub dir: tempfile::TempDir,
}

impl Place {
    /// A new one.
    pub fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs `pando COMMAND STORE ARGS…` on the store `s` of this place.
    pub fn pando(&self, command: &str, args: &[&str]) -> Run {
        self.feed(command, args, b"")
    }

    /// The same with something on stdin.
    pub fn feed(&self, command: &str, args: &[&str], stdin: &[u8]) -> Run {
        run_on(&self.path("s"), command, args, stdin)
    }
}

/// What a run of the binary gave.
pub struct Run {
    /// The exit code.
    pub code: i32,
    /// What it printed.
    pub out: String,
    /// What it complained of.
    pub err: String,
}

impl Run {
    /// The output of a run that must have succeeded.
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}", self.err);
        self.out
    }

    /// The one line of a run that must have failed with `code`.
    pub fn fails(self, code: i32) -> String {
        assert_eq!(self.code, code, "{} {}", self.out, self.err);
        assert_eq!(self.err.lines().count(), 1, "not one line: {}", self.err);
        assert!(self.err.starts_with("pando: "), "{}", self.err);
        self.err
    }

    /// The JSON that a run has printed on its last line.
    pub fn json(self) -> serde_json::Value {
        let out = self.ok();
        serde_json::from_str(out.lines().last().unwrap()).unwrap()
    }
}

/// Runs `pando COMMAND STORE ARGS…`.
pub fn run_on(store: &Path, command: &str, args: &[&str], stdin: &[u8]) -> Run {
    let mut words: Vec<&str> = vec![command, store.to_str().unwrap()];
    words.extend(args);
    run(&words, stdin)
}

/// Runs `pando ARGS…`.
pub fn run(args: &[&str], stdin: &[u8]) -> Run {
    let output = output(args, stdin);
    Run {
        code: output.status.code().expect("not killed"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs `pando ARGS…`, whose output may be any bytes.
pub fn output(args: &[&str], stdin: &[u8]) -> Output {
    let mut child =
        command().args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // A command that does not read its stdin closes it: not our failure.
        scope.spawn(move || pipe.write_all(stdin).ok());
        child.wait_with_output().unwrap()
    })
}

/// The binary.
pub fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_pando"))
}
