//! Functions that run the binary.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// A temporary directory with a path for a store.
pub struct Place {
    /// The directory.
    pub dir: tempfile::TempDir,
}

impl Place {
    /// Creates the directory.
    pub fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    /// The path of a file in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs `pando COMMAND STORE ARGS…` on the store `s` in this directory.
    pub fn pando(&self, command: &str, args: &[&str]) -> Run {
        self.feed(command, args, b"")
    }

    /// Like [`Place::pando`], with `stdin` as standard input.
    pub fn feed(&self, command: &str, args: &[&str], stdin: &[u8]) -> Run {
        run_on(&self.path("s"), command, args, stdin)
    }
}

/// The result of a run of the binary.
pub struct Run {
    /// The exit code.
    pub code: i32,
    /// The stdout of the run.
    pub out: String,
    /// The stderr of the run.
    pub err: String,
}

impl Run {
    /// The stdout of a run that must have succeeded.
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}", self.err);
        self.out
    }

    /// The one line on stderr of a run that must have failed with `code`.
    pub fn fails(self, code: i32) -> String {
        assert_eq!(self.code, code, "{} {}", self.out, self.err);
        assert_eq!(self.err.lines().count(), 1, "not one line: {}", self.err);
        assert!(self.err.starts_with("pando: "), "{}", self.err);
        self.err
    }

    /// The JSON on the last line of stdout.
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

/// Runs `pando ARGS…`. The output may contain any bytes.
pub fn output(args: &[&str], stdin: &[u8]) -> Output {
    let mut child =
        command().args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // This write fails if the command closes its stdin without reading it. The failure is ignored.
        scope.spawn(move || pipe.write_all(stdin).ok());
        child.wait_with_output().unwrap()
    })
}

/// Returns a command that starts the binary.
pub fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_pando"))
}
