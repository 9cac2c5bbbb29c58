//! The plans of the experiments, and the source's claims beside their results.

use pandodb_paged::{BeOptions, BufferKind, Buffers, Coupling, FanOut, FlushPolicy, RootKind, TreeKind};

use super::measure::{Bench, Setup};
use super::{BETREE, BTREE, Claim, Config, Experiment, Mix, Report, Row, betree};
use crate::failure::Result;
use crate::workload::pick::Dist;

/// Values of ε that are measured. Below 0.3 the layouts are nearly the same (§6.2).
const EPSILONS: [f64; 11] = [0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];

const BTREE_OPTIMISTIC: TreeKind = TreeKind::BTree(Coupling::Optimistic);
const BETREE_OPTIMISTIC: TreeKind = TreeKind::BeTree(BeOptions { coupling: Coupling::Optimistic, ..BeOptions::SOURCE });
/// With pages of 16 KiB and values of 100 bytes, the narrowest of these nodes has up to ten children.
const DYNAMIC: TreeKind = TreeKind::BeTree(BeOptions { fan_out: FanOut::Dynamic { least: 8 }, ..BeOptions::SOURCE });
const APART: TreeKind = TreeKind::BeTree(BeOptions { buffers: Buffers::Apart, ..BeOptions::SOURCE });
const APART_OPTIMISTIC: TreeKind =
    TreeKind::BeTree(BeOptions { coupling: Coupling::Optimistic, buffers: Buffers::Apart, ..BeOptions::SOURCE });
const TEXTBOOK: TreeKind = TreeKind::BeTree(BeOptions { root: RootKind::Textbook, ..BeOptions::SOURCE });

/// Runs one experiment.
pub struct Runner<'a> {
    experiment: Experiment,
    config: &'a Config,
    watch: &'a mut dyn FnMut(&str),
    report: Report,
    created: usize,
}

/// A segment of each tree of a comparison.
#[derive(Clone, Copy)]
struct Plan {
    mix: Mix,
    dist: Dist,
    threads: usize,
}

/// Operations per second of elapsed time, and per second of processor time.
#[derive(Clone, Copy, Debug)]
struct Rate {
    elapsed: f64,
    cpu: f64,
}

/// The rate over all rounds of the rows for which `which` holds: the harmonic mean, since all have as many operations.
fn rate(rows: &[Row], which: impl Fn(&Row) -> bool) -> Option<Rate> {
    let rows: Vec<&Row> = rows.iter().filter(|row| which(row)).collect();
    let ops = rows.iter().map(|row| row.ops as f64).sum::<f64>();
    let seconds: f64 = rows.iter().map(|row| row.seconds).sum();
    let cpu: f64 = rows.iter().map(|row| row.cpu_us * row.ops as f64 * 1e-6).sum();
    (ops > 0.0).then(|| Rate { elapsed: ops / seconds.max(1e-9), cpu: ops / cpu.max(1e-9) })
}

/// Pages read and written per operation.
fn transfers(rows: &[Row], which: impl Fn(&Row) -> bool) -> Option<f64> {
    let rows: Vec<&Row> = rows.iter().filter(|row| which(row)).collect();
    (!rows.is_empty()).then(|| rows.iter().map(|row| row.reads + row.writes).sum::<f64>() / rows.len() as f64)
}

fn ratio(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    Some(above? / below.filter(|&below| below > 0.0)?)
}

impl<'a> Runner<'a> {
    /// A runner without results.
    pub fn new(experiment: Experiment, config: &'a Config, watch: &'a mut dyn FnMut(&str)) -> Runner<'a> {
        Runner { experiment, config, watch, report: Report::default(), created: 0 }
    }

    /// Runs the experiment.
    pub fn run(mut self) -> Result<Report> {
        match self.experiment {
            Experiment::Inserts => self.inserts()?,
            Experiment::Workloads => self.workloads()?,
            Experiment::Epsilon => self.epsilon()?,
            Experiment::Roots => self.roots()?,
            Experiment::Coupling => self.coupling()?,
            Experiment::Sizes => self.sizes()?,
            Experiment::Buffers => self.buffers()?,
            Experiment::Flushes => self.flushes()?,
            Experiment::Dynamic => self.dynamic()?,
        }
        Ok(self.report)
    }

    /// A tree with all of its pages in memory.
    fn in_memory(&self, tree: TreeKind) -> Setup {
        let Config { page, value, epsilon, .. } = *self.config;
        Setup { tree, buffer: BufferKind::Optimal, page, value, epsilon, frames: 0 }
    }

    /// A tree with memory for a share of its records.
    fn limited(&self, tree: TreeKind) -> Setup {
        self.share(Setup { buffer: self.config.buffer, ..self.in_memory(tree) }, self.config.memory_share)
    }

    fn share(&self, setup: Setup, share: f64) -> Setup {
        let bytes = self.config.records as f64 * (8 + setup.value) as f64 * share;
        // A flush of one path must fit.
        Setup { frames: ((bytes / setup.page as f64) as usize).max(16), ..setup }
    }

    /// Measures trees in turns. Each is created once; `preload` also fills it.
    fn compare(&mut self, setups: &[Setup], plans: &[Plan], preload: bool) -> Result<()> {
        let mut benches = Vec::new();
        for &setup in setups {
            let name = format!("{}, {}, pages of {} bytes", setup.tree.name(), setup.buffer.name(), setup.page);
            (self.watch)(&format!("{}: preload of {name}, ε = {}", self.experiment.name(), setup.epsilon));
            self.created += 1;
            let bench = Bench::create(self.config, setup, self.created)?;
            if preload {
                bench.preload()?;
            }
            benches.push(bench);
        }
        let from = self.report.rows.len();
        for round in 0..self.config.rounds {
            for plan in plans {
                for bench in &mut benches {
                    let row = bench.segment(plan.mix, plan.dist, plan.threads)?;
                    (self.watch)(&format!("{}: {} {}", self.experiment.name(), row.tree, plan.mix.name()));
                    self.report.rows.push(Row { round, experiment: self.experiment.name(), ..row });
                }
            }
        }
        let heights = benches.iter().map(Bench::verify).collect::<Result<Vec<_>>>()?;
        for (i, row) in self.report.rows[from..].iter_mut().enumerate() {
            row.height = heights[i % benches.len()];
        }
        Ok(())
    }

    /// A claim about the ratio of two rates.
    fn claim(
        &mut self,
        what: impl Into<String>,
        from: &'static str,
        paper: &'static str,
        above: Option<Rate>,
        below: Option<Rate>,
    ) {
        let measured = ratio(above.map(|rate| rate.elapsed), below.map(|rate| rate.elapsed));
        let by_cpu = ratio(above.map(|rate| rate.cpu), below.map(|rate| rate.cpu));
        self.report.claims.push(Claim { what: what.into(), from, paper, measured, by_cpu });
    }

    /// A claim about the ratio of two numbers of pages.
    fn claim_pages(
        &mut self,
        what: impl Into<String>,
        from: &'static str,
        paper: &'static str,
        above: Option<f64>,
        below: Option<f64>,
    ) {
        let measured = ratio(above, below);
        self.report.claims.push(Claim { what: what.into(), from, paper, measured, by_cpu: None });
    }

    fn inserts(&mut self) -> Result<()> {
        let plans = [Dist::Zipf, Dist::Uniform].map(|dist| Plan { mix: Mix::Inserts, dist, threads: 1 });
        let mut trees = vec![self.limited(BTREE), self.limited(BETREE)];
        // With a smaller ε, fewer children share a buffer, so the batches for each are larger.
        let mut epsilons = vec![self.config.epsilon];
        epsilons.extend([0.7, 0.5].into_iter().filter(|&epsilon| epsilon != self.config.epsilon));
        trees.extend(epsilons[1..].iter().map(|&epsilon| Setup { epsilon, ..self.limited(BETREE) }));
        trees.push(self.limited(DYNAMIC));
        self.compare(&trees, &plans, true)?;
        let rows = std::mem::take(&mut self.report.rows);
        let mut others: Vec<(String, f64, String)> =
            epsilons.iter().map(|&epsilon| (BETREE.name(), epsilon, format!("ε = {epsilon}"))).collect();
        others.push((DYNAMIC.name(), self.config.epsilon, "dynamic ε".to_owned()));
        for (tree, epsilon, label) in others {
            for dist in [Dist::Zipf, Dist::Uniform] {
                let is_source = tree == BETREE.name() && epsilon == self.config.epsilon;
                let paper = if dist == Dist::Zipf && is_source { "7.2 ×" } else { "–" };
                let btree = |row: &Row| row.dist == dist && row.tree == BTREE.name();
                let betree = |row: &Row| row.dist == dist && row.tree == tree && row.epsilon == epsilon;
                let what = format!("inserts, {}, {label}: betree ÷ btree", dist.name());
                self.claim(what, "6.4", paper, rate(&rows, betree), rate(&rows, btree));
                let what = format!("inserts, {}, {label}: pages moved, btree ÷ betree", dist.name());
                self.claim_pages(what, "4.2", "–", transfers(&rows, btree), transfers(&rows, betree));
            }
        }
        self.report.rows = rows;
        Ok(())
    }

    fn workloads(&mut self) -> Result<()> {
        let trees = [BTREE, BETREE, TEXTBOOK].map(|tree| self.in_memory(tree));
        for threads in self.config.threads.clone() {
            let plan = |mix| Plan { mix, dist: Dist::Zipf, threads };
            self.compare_fresh(&trees, plan(Mix::InsertsIntoEmpty))?;
            let rest: Vec<Plan> = Mix::ALL[1..].iter().map(|&mix| plan(mix)).collect();
            self.compare(&trees, &rest, true)?;
        }
        let papers = ["1.25 × (1 thread), 2.8 × (20)", "1.2 × (20 threads)", "below 1", "below 1", "0.5 ×"];
        let rows = self.report.rows.clone();
        for threads in self.config.threads.clone() {
            for (mix, paper) in Mix::ALL.into_iter().zip(papers) {
                let of = |tree: TreeKind| {
                    rate(&rows, |row| (row.mix, row.threads) == (mix, threads) && row.tree == tree.name())
                };
                let what = format!("{}, {threads} threads: betree ÷ btree", mix.name());
                self.claim(what, "6.3", paper, of(BETREE), of(BTREE));
            }
        }
        Ok(())
    }

    /// Measures trees that are empty at the begin of each round.
    fn compare_fresh(&mut self, setups: &[Setup], plan: Plan) -> Result<()> {
        for round in 0..self.config.rounds {
            for &setup in setups {
                self.created += 1;
                let mut bench = Bench::create(self.config, setup, self.created)?;
                let row = bench.segment(plan.mix, plan.dist, plan.threads)?;
                let height = bench.verify()?;
                self.report.rows.push(Row { round, experiment: self.experiment.name(), height, ..row });
            }
        }
        Ok(())
    }

    fn epsilon(&mut self) -> Result<()> {
        let mut plans = Vec::new();
        for &threads in &self.config.threads {
            for dist in [Dist::Uniform, Dist::Zipf] {
                plans.extend([Mix::Inserts, Mix::Reads].map(|mix| Plan { mix, dist, threads }));
            }
        }
        self.compare(&[self.in_memory(BTREE)], &plans, true)?;
        for epsilon in EPSILONS {
            self.compare(&[Setup { epsilon, ..self.in_memory(BETREE) }], &plans, true)?;
        }
        let rows = self.report.rows.clone();
        let at = |epsilon: f64, mix: Mix| {
            rate(&rows, |row| row.tree == BETREE.name() && row.epsilon == epsilon && row.mix == mix && row.threads == 1)
        };
        let pages = |epsilon: f64| {
            let row = rows.iter().rfind(|row| row.tree == BETREE.name() && row.epsilon == epsilon);
            row.map(|row| row.pages as f64)
        };
        let btree = rows.iter().rfind(|row| row.tree == BTREE.name()).map(|row| row.pages as f64);
        let (inserts, reads) = (Mix::Inserts, Mix::Reads);
        self.claim("inserts, 1 thread: ε = 0.8 ÷ ε = 0", "6.2", "slightly above 1", at(0.8, inserts), at(0.0, inserts));
        self.claim("inserts, 1 thread: ε = 1 ÷ ε = 0.8", "6.2", "below 0.64", at(1.0, inserts), at(0.8, inserts));
        self.claim("reads, 1 thread: ε = 1 ÷ ε = 0.3", "6.2", "2.2 ×", at(1.0, reads), at(0.3, reads));
        self.claim_pages("pages: ε = 0.65 to 0.7 ÷ ε = 0", "6.2", "0.72", pages(0.7), pages(0.0));
        self.claim_pages("pages: ε = 0.95 ÷ B+-tree", "6.2", "0.85", pages(0.95), btree);
        self.claim_pages("pages: ε = 1 ÷ B+-tree", "6.2", "1", pages(1.0), btree);
        Ok(())
    }

    fn roots(&mut self) -> Result<()> {
        let trees = [BETREE, TEXTBOOK].map(|tree| self.in_memory(tree));
        let mut plans = Vec::new();
        for &threads in &self.config.threads {
            let mixes = [Mix::Inserts, Mix::MostlyReads, Mix::ReadsAndUpdates];
            plans.extend(mixes.map(|mix| Plan { mix, dist: Dist::Zipf, threads }));
        }
        self.compare(&trees, &plans, true)?;
        let rows = self.report.rows.clone();
        for plan in plans {
            let of = |tree: TreeKind| {
                rate(&rows, |row| (row.mix, row.threads) == (plan.mix, plan.threads) && row.tree == tree.name())
            };
            let paper = match (plan.mix, plan.threads) {
                (_, 1) => "slightly above 1",
                (Mix::Inserts, _) => "9.4 × (20 threads)",
                (Mix::MostlyReads, _) => "4 × (20 threads)",
                _ => "12 × (20 threads)",
            };
            let what = format!("{}, {} threads: separate ÷ textbook root", plan.mix.name(), plan.threads);
            self.claim(what, "6.3", paper, of(BETREE), of(TEXTBOOK));
        }
        Ok(())
    }

    fn coupling(&mut self) -> Result<()> {
        let trees = [BTREE, BETREE, APART, BTREE_OPTIMISTIC, BETREE_OPTIMISTIC, APART_OPTIMISTIC]
            .map(|tree| self.in_memory(tree));
        let threads = self.config.threads.clone();
        let plans: Vec<Plan> =
            threads.iter().map(|&threads| Plan { mix: Mix::ReadsAndUpdates, dist: Dist::Zipf, threads }).collect();
        self.compare(&trees, &plans, true)?;
        let rows = self.report.rows.clone();
        for threads in threads {
            let of = |tree: TreeKind| rate(&rows, |row| row.threads == threads && row.tree == tree.name());
            let pairs = [
                ("latched betree ÷ latched btree", "6.3", "0.5 × (2 to 20 threads)", BETREE, BTREE),
                ("optimistic betree ÷ latched btree", "8.1", "–", BETREE_OPTIMISTIC, BTREE),
                ("optimistic betree ÷ optimistic btree", "8.1", "–", BETREE_OPTIMISTIC, BTREE_OPTIMISTIC),
                ("latched betree, buffer apart ÷ latched betree", "8.1", "–", APART, BETREE),
                (
                    "optimistic betree, buffer apart ÷ optimistic betree",
                    "8.1",
                    "fewer restarts",
                    APART_OPTIMISTIC,
                    BETREE_OPTIMISTIC,
                ),
            ];
            for (what, from, paper, above, below) in pairs {
                let what = format!("5 reads, updates, {threads} threads: {what}");
                self.claim(what, from, paper, of(above), of(below));
            }
        }
        Ok(())
    }

    fn sizes(&mut self) -> Result<()> {
        let plans = [Mix::Inserts, Mix::Reads].map(|mix| Plan { mix, dist: Dist::Zipf, threads: 1 });
        let (mut sizes, page, value) = (Vec::new(), self.config.page, self.config.value);
        sizes.extend([page / 4, page, page * 4, page * 16].map(|page| (page, value)));
        sizes.extend([value / 4, value * 8].map(|value| (page, value)));
        for (page, value) in sizes {
            // A buffer in the bytes of its page moves more, the larger the page is.
            let is_large = page > self.config.page;
            let trees = if is_large { vec![BTREE, BETREE, APART] } else { vec![BTREE, BETREE] };
            let limit = |tree| self.share(Setup { page, value, ..self.limited(tree) }, self.config.memory_share);
            let setups: Vec<Setup> = trees.into_iter().map(limit).collect();
            self.compare(&setups, &plans, true)?;
            let rows = self.report.rows.clone();
            let of = |tree: TreeKind, mix| {
                rate(&rows, |row| (row.page, row.value, row.mix) == (page, value, mix) && row.tree == tree.name())
            };
            for mix in [Mix::Inserts, Mix::Reads] {
                let what = format!("pages of {page}, values of {value} bytes, {}: betree ÷ btree", mix.name());
                let paper = if mix == Mix::Inserts { "larger nodes should help" } else { "–" };
                self.claim(what, "8", paper, of(BETREE, mix), of(BTREE, mix));
                if is_large {
                    let what = format!("pages of {page}, {}: betree, buffer apart ÷ betree", mix.name());
                    self.claim(what, "8.1", "–", of(APART, mix), of(BETREE, mix));
                }
            }
        }
        Ok(())
    }

    fn buffers(&mut self) -> Result<()> {
        let kinds = [BufferKind::TwoQueue, BufferKind::TwoQueueSharded, BufferKind::Clock, BufferKind::Swizzled];
        // In memory: the cost of a hit. With a share of the memory: the quality of the choice of victims.
        for share in [4.0, self.config.memory_share] {
            let setups = kinds.map(|buffer| self.share(Setup { buffer, ..self.in_memory(BETREE) }, share));
            let threads = self.config.threads.clone();
            let plans: Vec<Plan> =
                threads.iter().map(|&threads| Plan { mix: Mix::ReadsAndUpdates, dist: Dist::Zipf, threads }).collect();
            self.compare(&setups, &plans, true)?;
            let (rows, frames) = (self.report.rows.clone(), setups[0].frames as u64);
            for threads in threads {
                let of = |kind: BufferKind, threads: usize| {
                    rate(&rows, |row| (row.buffer, row.threads, row.frames) == (kind.name(), threads, frames))
                };
                let place = if share > 1.0 { "in memory" } else { "memory for a share" };
                let mut pairs = kinds[1..].iter().map(|&kind| (kind, BufferKind::TwoQueue)).collect::<Vec<_>>();
                // Both have the same victims, so this ratio is the effect of the hints.
                pairs.push((BufferKind::Swizzled, BufferKind::Clock));
                for (above, below) in pairs {
                    let (from, paper) = match above {
                        BufferKind::Swizzled => ("8.5", "above 1 with threads"),
                        _ => ("6.4", "2q drops with threads"),
                    };
                    let pair = format!("{} ÷ {}", above.name(), below.name());
                    let what = format!("5 reads, updates, {place}, {threads} threads: {pair}");
                    self.claim(what, from, paper, of(above, threads), of(below, threads));
                }
            }
        }
        Ok(())
    }

    /// Phases of inserts, reads, and both, again and again on the same trees.
    fn dynamic(&mut self) -> Result<()> {
        let mut epsilons = vec![self.config.epsilon];
        epsilons.extend([0.7, 0.5].into_iter().filter(|&epsilon| epsilon != self.config.epsilon));
        let mut trees: Vec<Setup> = epsilons.iter().map(|&epsilon| Setup { epsilon, ..self.limited(BETREE) }).collect();
        trees.extend([self.limited(DYNAMIC), self.limited(BTREE)]);
        let mixes = [Mix::Inserts, Mix::ReadsAndUpdates, Mix::MostlyReads, Mix::Reads];
        for dist in [Dist::Zipf, Dist::Uniform] {
            let plans = mixes.map(|mix| Plan { mix, dist, threads: 1 });
            self.compare(&trees, &plans, true)?;
        }
        let rows = self.report.rows.clone();
        for (dist, mix) in [Dist::Zipf, Dist::Uniform].iter().flat_map(|&dist| mixes.map(|mix| (dist, mix))) {
            let is_of = |row: &Row| row.dist == dist && row.mix == mix;
            let dynamic = |row: &Row| is_of(row) && row.tree == DYNAMIC.name();
            for &epsilon in &epsilons {
                let fixed = |row: &Row| is_of(row) && row.tree == BETREE.name() && row.epsilon == epsilon;
                let what = format!("{}, {}: dynamic ÷ ε = {epsilon}", mix.name(), dist.name());
                self.claim(what.clone(), "8.2", "could be better", rate(&rows, dynamic), rate(&rows, fixed));
                let (dynamic, fixed) = (transfers(&rows, dynamic), transfers(&rows, fixed));
                self.claim_pages(format!("pages moved, {what}"), "8.2", "–", dynamic, fixed);
            }
            let btree = |row: &Row| is_of(row) && row.tree == BTREE.name();
            let what = format!("{}, {}: dynamic ÷ btree", mix.name(), dist.name());
            self.claim(what, "8.2", "–", rate(&rows, dynamic), rate(&rows, btree));
        }
        Ok(())
    }

    /// Loads the same records into empty trees, which differ in their flush policy.
    fn flushes(&mut self) -> Result<()> {
        let mut epsilons = vec![self.config.epsilon];
        // 004 measures with ε = 0.5.
        epsilons.extend([0.5].into_iter().filter(|&epsilon| epsilon != self.config.epsilon));
        if epsilons.len() == 1 {
            epsilons.push(0.8);
        }
        for &epsilon in &epsilons {
            for dist in [Dist::Uniform, Dist::Zipf] {
                let setups = FlushPolicy::ALL.map(|policy| Setup { epsilon, ..self.limited(betree(policy)) });
                (self.watch)(&format!("flushes: {}, ε = {epsilon}", dist.name()));
                self.compare_fresh(&setups, Plan { mix: Mix::InsertsIntoEmpty, dist, threads: 1 })?;
            }
        }
        let rows = self.report.rows.clone();
        for (epsilon, dist) in epsilons.iter().flat_map(|&epsilon| [(epsilon, Dist::Uniform), (epsilon, Dist::Zipf)]) {
            for policy in [FlushPolicy::Threshold, FlushPolicy::Reserved] {
                let is_of = |row: &Row, policy: FlushPolicy| {
                    row.epsilon == epsilon && row.dist == dist && row.policy == policy.name()
                };
                let (other, base) = (|row: &Row| is_of(row, policy), |row: &Row| is_of(row, FlushPolicy::Largest));
                let what = format!("{}, ε = {epsilon}: {} ÷ largest", dist.name(), policy.name());
                let from = if policy == FlushPolicy::Threshold { "004 3" } else { "004 2.4.1" };
                self.claim(format!("inserts, {what}"), from, "–", rate(&rows, other), rate(&rows, base));
                let (other, base) = (transfers(&rows, other), transfers(&rows, base));
                self.claim_pages(format!("pages moved, {what}"), from, "–", other, base);
            }
        }
        Ok(())
    }
}
