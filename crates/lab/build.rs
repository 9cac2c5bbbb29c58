//! Sets `PANDO_COMMIT` to the current commit. Each line of results contains this commit.

use std::process::Command;

fn main() {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_default();
    println!("cargo::rustc-env=PANDO_COMMIT={commit}");
    println!("cargo::rerun-if-changed=build.rs");
    // Outside a git work tree, the log of HEAD does not exist, so the build is not told to depend on this file.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| std::path::Path::new(log).exists()) {
        println!("cargo::rerun-if-changed={log}");
    }
}
