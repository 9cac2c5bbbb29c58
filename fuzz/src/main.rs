//! Runs the targets from the command line.
//!
//! ```text
//!   list                                   print the names of the targets
//!   lengths                                print the names and the maximum input lengths
//!   seeds                                  write the generated part of the corpus
//!   replay TARGET FILE…                    run inputs
//!   minimise TARGET FILE                   write a smaller input with a finding to FILE.min
//!   drive TARGET|all [--runs N | --seconds T] [--seed S]
//! ```

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use pandodb_fuzz::driver::{Finding, Until, attempt, corpus_dir, drive, minimise, seed_files};
use pandodb_fuzz::{Target, target, targets::ALL, warm};

const USAGE: &str = "list | lengths | seeds | replay TARGET FILE… | minimise TARGET FILE | drive TARGET|all [--runs N | --seconds T] [--seed S]";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["list"] => {
            ALL.iter().for_each(|target| println!("{}", target.name));
            Ok(())
        }
        ["lengths"] => {
            ALL.iter().for_each(|target| println!("{} {}", target.name, target.max_len));
            Ok(())
        }
        ["seeds"] => write_seeds(),
        ["replay", name, ref files @ ..] if !files.is_empty() => replay(name, files),
        ["minimise", name, file] => smaller(name, file),
        ["drive", name, ref options @ ..] => drive_all(name, options),
        _ => Err(format!("usage: {USAGE}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn find(name: &str) -> Result<&'static Target, String> {
    target(name).ok_or_else(|| format!("there is no target `{name}`; `list` prints all targets"))
}

fn write_seeds() -> Result<(), String> {
    for target in ALL {
        let dir = corpus_dir(target);
        std::fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
        for (name, bytes) in seed_files(target) {
            std::fs::write(dir.join(name), bytes).map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}

fn read(file: &str) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|e| format!("{file}: {e}"))
}

fn replay(name: &str, files: &[&str]) -> Result<(), String> {
    let target = find(name)?;
    warm(target);
    for file in files {
        let started = Instant::now();
        attempt(target, &read(file)?).map_err(|finding| format!("{file}: {}", finding.what))?;
        println!("{file}: {:?}", started.elapsed());
    }
    Ok(())
}

fn smaller(name: &str, file: &str) -> Result<(), String> {
    let target = find(name)?;
    let input = read(file)?;
    if attempt(target, &input).is_ok() {
        return Err(format!("{file}: this input has no finding"));
    }
    std::panic::set_hook(Box::new(|_| {}));
    let smaller = minimise(target, &input, 20_000);
    let path = format!("{file}.min");
    std::fs::write(&path, &smaller).map_err(|e| e.to_string())?;
    println!("{path}: {} bytes instead of {}", smaller.len(), input.len());
    Ok(())
}

fn drive_all(name: &str, options: &[&str]) -> Result<(), String> {
    let chosen: Vec<&'static Target> = if name == "all" { ALL.iter().collect() } else { vec![find(name)?] };
    let (mut until, mut seed) = (Until::Elapsed(Duration::from_secs(10)), 1);
    for option in options.chunks(2) {
        let [word, number] = option else { return Err(format!("usage: {USAGE}")) };
        let number: u64 = number.parse().map_err(|_| format!("{number} is not a number"))?;
        match *word {
            "--runs" => until = Until::Runs(number),
            "--seconds" => until = Until::Elapsed(Duration::from_secs(number)),
            "--seed" => seed = number,
            _ => return Err(format!("usage: {USAGE}")),
        }
    }
    let mut found = Vec::new();
    for target in chosen {
        let started = Instant::now();
        match drive(target, seed, until) {
            Ok(runs) => {
                let seconds = started.elapsed().as_secs_f64();
                println!("{:12} {runs:9} runs in {seconds:6.1} s: {:8.0}/s", target.name, runs as f64 / seconds);
            }
            Err(finding) => found.push(keep(&finding)?),
        }
    }
    if found.is_empty() { Ok(()) } else { Err(found.join("\n")) }
}

/// Saves the input of a finding. Returns its description and the command that replays it.
fn keep(finding: &Finding) -> Result<String, String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts").join(finding.target);
    std::fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
    let file = dir.join(format!("crash-{:08x}", crc32c::crc32c(&finding.input)));
    std::fs::write(&file, &finding.input).map_err(|e| e.to_string())?;
    let what: String = finding.what.chars().take(600).collect();
    Ok(format!("{}: {what}\n  fuzz/run.sh --replay {} {}", finding.target, finding.target, file.display()))
}
