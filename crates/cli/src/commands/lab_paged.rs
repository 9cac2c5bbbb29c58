//! `lab paged`: repeats the experiments of 000 on the source's own trees of pages.

use pandodb_lab::paged::{self, Claim, Config, Experiment, Row};
use pandodb_paged::{BufferKind, Sizes, layout::Layout};

use crate::args::{PagedArgs, PagedBuffer, PagedExperiment};
use crate::failure::{Failure, Outcome};
use crate::output;

/// Trees of more records are not verified, because that takes longer than the measurement.
const VERIFY_UP_TO: u64 = 1 << 20;

impl From<PagedExperiment> for Experiment {
    fn from(experiment: PagedExperiment) -> Experiment {
        match experiment {
            PagedExperiment::Inserts => Experiment::Inserts,
            PagedExperiment::Workloads => Experiment::Workloads,
            PagedExperiment::Epsilon => Experiment::Epsilon,
            PagedExperiment::Roots => Experiment::Roots,
            PagedExperiment::Coupling => Experiment::Coupling,
            PagedExperiment::Sizes => Experiment::Sizes,
            PagedExperiment::Buffers => Experiment::Buffers,
            PagedExperiment::Flushes => Experiment::Flushes,
            PagedExperiment::Dynamic => Experiment::Dynamic,
        }
    }
}

/// Runs experiments and prints their results.
///
/// # Errors
/// Misuse for sizes that do not make a tree, the errors of files, and those of standard output.
pub fn run(args: &PagedArgs) -> Outcome {
    let sizes = Sizes { page: args.page, value: args.value, epsilon: args.epsilon };
    Layout::new(sizes).map_err(|e| Failure::Misuse(e.to_string()))?;
    if !(args.memory_share > 0.0 && args.memory_share <= 1.0) {
        return Err(Failure::Misuse("--memory-share must be above 0 and at most 1".to_owned()));
    }
    let parent = args.store.clone().unwrap_or_else(|| ".".into());
    let directory = tempfile::Builder::new().prefix(".pando-paged-").tempdir_in(&parent);
    let directory =
        directory.map_err(|e| Failure::io(format!("cannot create a directory in {}", parent.display()), &e))?;
    let config = Config {
        records: args.records,
        ops: args.ops.unwrap_or(args.records),
        threads: args.threads.iter().map(|&threads| usize::from(threads)).collect(),
        rounds: args.rounds,
        page: args.page,
        value: args.value,
        epsilon: args.epsilon,
        buffer: match args.buffer {
            PagedBuffer::TwoQueue => BufferKind::TwoQueue,
            PagedBuffer::TwoQueueSharded => BufferKind::TwoQueueSharded,
            PagedBuffer::Clock => BufferKind::Clock,
            PagedBuffer::Swizzled => BufferKind::Swizzled,
        },
        memory_share: args.memory_share,
        direct: args.direct,
        seed: args.seed,
        verify_up_to: VERIFY_UP_TO,
        directory: directory.path().to_owned(),
    };
    for &experiment in &args.experiments {
        let bar = output::spinner("starting");
        let report = paged::run(experiment.into(), &config, &mut |text| bar.set_message(text.to_owned()));
        bar.finish_and_clear();
        let report = report.map_err(|e| Failure::Io(e.to_string()))?;
        if args.json {
            report.rows.iter().try_for_each(output::json)?;
            report.claims.iter().try_for_each(output::json)?;
            continue;
        }
        let head = [
            "tree", "policy", "buffer", "workload", "keys", "threads", "page", "value", "ε", "pivots", "slots",
            "ops/s", "cpu µs", "reads", "writes", "flushes", "flushed", "width", "splits", "instead", "moves",
            "height", "pages",
        ];
        output::line(output::table(&head, &report.rows.iter().map(row).collect::<Vec<_>>()))?;
        let head = ["claim", "§", "the source", "measured", "by cpu"];
        output::line(format!("\n{}\n", output::table(&head, &report.claims.iter().map(claim).collect::<Vec<_>>())))?;
    }
    Ok(())
}

fn row(row: &Row) -> Vec<String> {
    vec![
        row.tree.clone(),
        row.policy.to_owned(),
        row.buffer.to_owned(),
        row.mix.name().to_owned(),
        row.dist.name().to_owned(),
        row.threads.to_string(),
        row.page.to_string(),
        row.value.to_string(),
        row.epsilon.to_string(),
        row.pivots.to_string(),
        row.slots.to_string(),
        output::count(row.rate as u64),
        format!("{:.2}", row.cpu_us),
        format!("{:.3}", row.reads),
        format!("{:.3}", row.writes),
        format!("{:.4}", row.flushes),
        format!("{:.1}", row.flushed),
        format!("{:.2}", row.width),
        output::count(row.splits),
        output::count(row.splits_instead),
        output::count(row.moves),
        if row.height == 0 { "–".to_owned() } else { row.height.to_string() },
        output::count(row.pages),
    ]
}

fn claim(claim: &Claim) -> Vec<String> {
    let show = |ratio: Option<f64>| ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
    vec![claim.what.clone(), claim.from.to_owned(), claim.paper.to_owned(), show(claim.measured), show(claim.by_cpu)]
}
