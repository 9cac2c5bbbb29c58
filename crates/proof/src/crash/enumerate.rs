//! The enumerator: crashes a recorded run at every point, with every loss of data that a crash at that point can cause.
//!
//! 1. Go through the recorded history. At each point, determine the *window*: the steps from the last one that was
//!    acknowledged as durable to the last one that had begun.
//! 2. Build the images that the crash plan allows at this point. An image that is equal to an earlier image is not
//!    opened again, but its contents, which are known, must be in the window of this point too.
//! 3. Open each new image. The store must have exactly the contents after some step of the window: every batch is
//!    present completely or not at all, and every counter is exact.
//! 4. Verify some images, write to them and crash them again. Crash some other images inside their recovery.
//!
//! A killed process loses nothing that was written to the page cache, so its window is narrower: it begins at the last
//! step that was acknowledged as `Buffered`.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use pandodb::device::sim::{CrashChoice, CrashPlan, Cursor, SimDevice, SimHistory, SimImage, SimOp};
use pandodb::{Durability, Result, Store};

use super::window::Window;
use crate::drive::{Sizes, calmly, contents, options};
use crate::report::Tally;
use crate::script::{ROWS, Rng, Script, State};

/// The crashes to try on a recorded run.
#[derive(Clone, Debug)]
pub struct Effort {
    /// The writes that a crash may lose.
    pub plan: CrashPlan,
    /// The maximum number of choices to try at one point. The first choice of the plan is always tried; the others are
    /// drawn at random.
    pub per_point: usize,
    /// If this is `(part, parts)`: try all choices at the end of each window whose number modulo `parts` is `part`.
    pub part: Option<(u64, u64)>,
    /// The number of steps at the start of the history in which no crash is tried, because other histories cover these
    /// steps.
    pub skip: usize,
    /// If this is n, every nth new image is verified, written to, and crashed again.
    pub rewrite_every: u64,
    /// If this is n, every nth new image is crashed during its recovery.
    pub recovery_every: u64,
    /// The number of crashes during one recovery.
    pub recovery_images: usize,
}

pub(super) struct Enumerator<'a> {
    script: &'a Script,
    pub sizes: Sizes,
    pub effort: &'a Effort,
    states: Vec<State>,
    digests: Vec<u64>,
    /// The digest of the contents of each image, by the hash of the image.
    seen: HashMap<u64, u64>,
    pub recovery_seen: HashSet<u64>,
    pub rng: Rng,
    pub tally: Tally,
}

/// Tries the crashes of `effort` on the history of a script.
pub fn enumerate(script: &Script, sizes: Sizes, history: &SimHistory, effort: &Effort) -> Tally {
    let states = script.states();
    let digests = states.iter().map(State::digest).collect();
    let rng = Rng(script.seed ^ 0xC0FFEE);
    let tally = Tally::default();
    let (seen, recovery_seen) = (HashMap::new(), HashSet::new());
    let mut all = Enumerator { script, sizes, effort, states, digests, seen, recovery_seen, rng, tally };
    all.walk(history);
    all.tally
}

/// Whether a window ends before the operation. A window ends before each sync, because the sync makes writes durable,
/// and at the end of the history.
fn ends_window(op: Option<&SimOp>) -> bool {
    matches!(op, None | Some(SimOp::Sync { .. } | SimOp::SyncFailed { .. } | SimOp::SyncDir | SimOp::SyncDirFailed))
}

impl Enumerator<'_> {
    fn walk(&mut self, history: &SimHistory) {
        let mut cursor = history.walk();
        let mut window = Window::default();
        let mut windows = 0;
        while let Some(op) = cursor.advance() {
            if self.tally.is_enough() {
                return;
            }
            if let SimOp::Mark(mark) = op {
                window.pass(self.script, *mark);
            }
            let full = ends_window(history.ops().get(cursor.position())) && {
                windows += 1;
                self.effort.part.is_some_and(|(part, parts)| windows % parts == part)
            };
            if window.has_begun(self.effort.skip) {
                self.crash_here(&cursor, window, full);
            }
        }
    }

    /// Tries power cuts and a kill at one point. With `full`, tries every choice of the plan.
    fn crash_here(&mut self, cursor: &Cursor<'_>, window: Window, full: bool) {
        self.tally.count("points", 1);
        let pending = cursor.pending();
        let mut plan = self.effort.plan.clone();
        plan.seed = self.rng.next_u64();
        let visit = |all: &mut Self, choice: CrashChoice| {
            let image = cursor.image(&choice);
            let place = || format!("power cut at {}: {choice:?} of {}", cursor.position(), describe(&pending));
            all.visit(&image, window.power(), &place);
        };
        if full {
            self.tally.count("windows in full", 1);
            plan.choices(&pending).for_each(|choice| visit(self, choice));
        } else {
            self.sample(&plan, &pending).into_iter().for_each(|choice| visit(self, choice));
        }
        self.tally.count("kill images", 1);
        let image = cursor.cached_image();
        self.visit(&image, window.kill(), &|| format!("kill at {}", cursor.position()));
    }

    /// The choices to try: the first choice, which keeps no unsynced write, and a random sample of the others.
    fn sample(&mut self, plan: &CrashPlan, pending: &[&SimOp]) -> Vec<CrashChoice> {
        let mut choices: Vec<CrashChoice> = plan.choices(pending).collect();
        let keep = self.effort.per_point.max(1);
        for i in 1..keep.min(choices.len()) {
            let other = i + self.rng.below((choices.len() - i) as u64) as usize;
            choices.swap(i, other);
        }
        choices.truncate(keep);
        choices
    }

    fn visit(&mut self, image: &SimImage, allowed: RangeInclusive<usize>, place: &dyn Fn() -> String) {
        self.tally.count("images", 1);
        let hash = image.hash();
        let outcome = match self.seen.get(&hash) {
            Some(&digest) => self.judge(digest, &allowed),
            None => self.open_new(image, hash, &allowed),
        };
        if let Err(problem) = outcome
            && !self.tally.is_enough()
        {
            let problem = format!("{:?}, {}, steps {allowed:?}: {problem}", self.sizes, place());
            self.tally.fail(self.script.seed, problem);
        }
    }

    pub fn judge(&self, digest: u64, allowed: &RangeInclusive<usize>) -> Result<(), String> {
        if self.digests[allowed.clone()].contains(&digest) {
            return Ok(());
        }
        match self.digests.iter().rposition(|other| *other == digest) {
            Some(step) => Err(format!("it holds the state after {step} steps")),
            None => Err("it holds a state that never existed".into()),
        }
    }

    fn open_new(&mut self, image: &SimImage, hash: u64, allowed: &RangeInclusive<usize>) -> Result<(), String> {
        let nth = self.tally.runs;
        self.tally.runs += 1;
        self.tally.digest = self.tally.digest.wrapping_add(hash);
        let recover = nth.is_multiple_of(self.effort.recovery_every);
        let rewrite = nth.is_multiple_of(self.effort.rewrite_every);
        let device = SimDevice::from_image(image, nth);
        if recover {
            device.record();
        }
        let opened = calmly(|| {
            let store = self.sizes.open(device.clone())?;
            device.mark(0);
            let state = contents(&store)?;
            Ok((store, state))
        })?;
        let (store, state) = opened.map_err(|e: pandodb::Error| format!("it does not open: {e}"))?;
        let digest = state.digest();
        self.seen.insert(hash, digest);
        self.judge(digest, allowed).map_err(|e| self.explain(e, &state, allowed))?;
        if recover {
            self.crash_recovery(&device.history(), digest, allowed, 1)?;
        }
        if rewrite {
            self.tally.count("written to again", 1);
            let again = calmly(|| rewrite_and_crash(self.sizes, &device, store, state, nth))?;
            again.map_err(|e| format!("after writing to it: {e}"))??;
        }
        Ok(())
    }

    /// Describes how a wrong state differs from the last allowed one.
    fn explain(&self, problem: String, found: &State, allowed: &RangeInclusive<usize>) -> String {
        let expected = &self.states[*allowed.end()];
        let mut text = problem;
        for (name, entries) in &expected.0 {
            let Some(other) = found.0.get(name) else {
                text += &format!("; keyspace {name} is missing");
                continue;
            };
            let differing = entries.keys().chain(other.keys()).filter(|key| entries.get(*key) != other.get(*key));
            let keys: HashSet<String> = differing.map(|key| String::from_utf8_lossy(key).into_owned()).collect();
            text += &format!("; {name} differs from the last in {} keys: {:?}", keys.len(), keys.iter().take(4));
        }
        text
    }
}

/// Lists the operations briefly, for a failure report.
pub(super) fn describe(ops: &[impl std::borrow::Borrow<SimOp>]) -> String {
    let word = |op: &SimOp| match op {
        SimOp::Write { inode, patch } => format!("write {} {:?}", inode.0, patch.range()),
        other => format!("{other:?}"),
    };
    ops.iter().map(|op| word(op.borrow())).collect::<Vec<_>>().join(", ")
}

/// Verifies a recovered store, commits to it, cuts the power, and reads it back.
fn rewrite_and_crash(
    sizes: Sizes,
    device: &SimDevice,
    store: Store,
    mut state: State,
    nth: u64,
) -> Result<Result<(), String>> {
    let report = store.verify()?;
    if !report.is_clean() {
        return Ok(Err(format!("verify: {:?}", report.problems)));
    }
    let rows = store.keyspace_with(ROWS, options(ROWS))?;
    let (key, value) = (format!("later{nth}").into_bytes(), vec![nth as u8; (nth % 700) as usize]);
    rows.put_with(&key, &value, Durability::Synced)?;
    state.0.entry(ROWS.to_owned()).or_default().insert(key, value);
    let image = device.durable_image();
    drop((rows, store));
    let (_, store) = sizes.open_image(&image, nth)?;
    let found = contents(&store)?;
    let clean = store.verify()?.is_clean();
    Ok(match (found == state, clean) {
        (true, true) => Ok(()),
        (false, _) => Err("the contents after the second recovery are wrong".into()),
        (true, false) => Err("verify finds damage after the second recovery".into()),
    })
}
