//! `lab figure`: repeats the experiment of a published figure; `lab figures` lists the figures.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use indicatif::ProgressBar;
use pandodb_lab::bench::{Observer, Tick};
use pandodb_lab::engine::Mode;
use pandodb_lab::figures::run::Given;
use pandodb_lab::figures::{self, Figure, Results, Scale, show};
use pandodb_lab::line::Line;
use pandodb_lab::report;
use pandodb_lab::workload::Workload;

use crate::args::{FigureModes, LabFigureArgs, LabFiguresArgs};
use crate::failure::{Failure, Outcome};
use crate::output;

/// Prints the list of figures.
///
/// # Errors
/// If stdout cannot be written.
pub fn list(args: &LabFiguresArgs) -> Outcome {
    if args.json { output::json(&show::list_json()) } else { output::line(show::list().trim_end()) }
}

/// Measures a figure and prints the comparison.
///
/// # Errors
/// Misuse, and errors of files. Wrong results of the store are returned as corruption.
pub fn run(args: &LabFigureArgs) -> Outcome {
    let unknown = || {
        let ids: Vec<&str> = figures::ALL.iter().map(|figure| figure.id).collect();
        Failure::Misuse(format!("there is no figure `{}`; known figures: {}", args.figure, ids.join(", ")))
    };
    let figure = Figure::find(&args.figure).ok_or_else(unknown)?;
    for (name, value) in [("scale", args.scale), ("seconds", args.seconds)] {
        if !(value.is_finite() && value > 0.0) {
            return Err(Failure::Misuse(format!("--{name} must be a number above 0")));
        }
    }
    let lines = report::read(&args.with).map_err(|e| Failure::Misuse(e.to_string()))?;
    let (directory, _temporary) = directory(args)?;
    let scale = Scale {
        scale: args.scale,
        records: args.records,
        memory_budget: args.memory_budget,
        threads: args.threads.iter().map(|threads| usize::from(*threads)).collect(),
        seconds: args.seconds,
        seed: args.seed,
        directory,
        ..Scale::default()
    };
    let out = args.out.as_ref().map(|path| {
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.map_err(|e| Failure::io(format!("cannot open {}", path.display()), &e))
    });
    let bar = output::spinner("starting");
    let mut watch = Watch { bar, out: out.transpose()?, wrong: 0, failed: None };
    let mut modes: Vec<Results> = Vec::new();
    for &mode in args.mode.modes() {
        let given = Given { lines: lines.clone(), only: args.no_run };
        let results = figures::run(figure, &Scale { mode, ..scale.clone() }, given, &mut watch);
        modes.push(results.map_err(|e| super::bench::stopped(&*e))?);
    }
    watch.bar.finish_and_clear();
    for (format, directory) in args.images.targets() {
        let written = modes.iter().map(|results| show::write_images(results, directory, format));
        let written = written.collect::<Result<Vec<_>, _>>().map_err(|e| Failure::Io(e.to_string()))?;
        eprintln!("{} plots written to {}", written.concat().len(), directory.display());
    }
    if args.json {
        modes.iter().try_for_each(|results| output::json(&show::json(results)))?;
    } else {
        output::line(show::text(&modes).trim_end())?;
    }
    match (watch.failed, watch.wrong) {
        (Some(failure), _) => Err(failure),
        (None, 0) => Ok(()),
        (None, wrong) => Err(Failure::Corruption(format!("{wrong} results were wrong, so the figures are invalid"))),
    }
}

impl FigureModes {
    fn modes(self) -> &'static [Mode] {
        match self {
            FigureModes::Both => &[Mode::Product, Mode::Paper],
            FigureModes::Product => &[Mode::Product],
            FigureModes::Paper => &[Mode::Paper],
        }
    }
}

/// The directory of the stores. If this directory is temporary, also returns the guard that removes it.
fn directory(args: &LabFigureArgs) -> Outcome<(PathBuf, Option<tempfile::TempDir>)> {
    if let Some(path) = &args.store {
        std::fs::create_dir_all(path).map_err(|e| Failure::io(format!("cannot create {}", path.display()), &e))?;
        return Ok((path.clone(), None));
    }
    // The stores are not in the system's temporary directory, because that directory is often in memory.
    let temporary = tempfile::Builder::new().prefix("pando-figure-").tempdir_in(".");
    let temporary =
        temporary.map_err(|e| Failure::io("cannot create a temporary directory in the current directory", &e))?;
    Ok((temporary.path().to_owned(), Some(temporary)))
}

/// Shows progress and writes result lines.
struct Watch {
    bar: ProgressBar,
    out: Option<File>,
    wrong: u64,
    failed: Option<Failure>,
}

impl Observer for Watch {
    fn prepares(&mut self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    fn starts(&mut self, workload: &Workload) {
        self.bar.set_prefix(workload.name);
    }

    fn tick(&mut self, tick: &Tick) {
        let share = (tick.done as f64 / tick.of.max(1) as f64).max(tick.time_share) * 100.0;
        let rate = output::count(tick.last * 10);
        self.bar.set_message(format!("{:12} {share:3.0} %   {rate}/s", self.bar.prefix()));
    }

    fn ends(&mut self, line: &Line) {
        self.wrong += line.wrong_answers;
        let Some(out) = &mut self.out else { return };
        let json = serde_json::to_string(line).expect("figures and strings have a JSON form");
        if let Err(error) = writeln!(out, "{json}") {
            self.failed.get_or_insert(Failure::io("cannot write the result lines", &error));
        }
    }
}
