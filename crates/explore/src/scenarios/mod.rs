//! The scenarios. Each scenario runs a few threads on a tiny store and checks one claim, which must hold in every
//! schedule.
//!
//! Every execution of a scenario starts from the files of a store that was prepared once. So an execution takes only
//! about a millisecond. The harness keeps its own records with atomics and locks of the standard library, at which the
//! explorer cannot switch threads. So the harness never holds such a lock while it calls the engine.
//!
//! Each scenario has a canary ([`Twist::Canary`]), which is a wrong claim or a seeded bug of the engine. If the
//! explorer finds no failure in the canary, the scenario is useless as a test.

mod backup;
mod beside;
mod claims;
mod close;
mod commit;
mod crash;
mod dead;
mod direct;
mod load;
mod memtable;
mod pack;
mod pool;
mod rows;
mod swap;
mod sync;
mod transactions;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use self::transactions as tx;

use pandodb::base::SeededBug;
use pandodb::device::sim::{SimDevice, SimImage};
use pandodb::{AddI64, Append, Keyspace, KeyspaceAt, KeyspaceOptions, Mode, Result, Store, StoreBuilder};

use crate::device::ExploredDevice;
use crate::indexes::Variant;
use crate::{explore, indexes};

/// Whether a scenario runs normally or as a canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twist {
    /// The scenario runs normally.
    None,
    /// The scenario runs with a mistake that the explorer must find: the claim does not hold in some schedules.
    Canary,
}

/// A few threads and a claim.
pub struct Scenario {
    /// The name on the command line.
    pub name: &'static str,
    /// The claim that must hold in every schedule.
    pub claim: &'static str,
    /// Whether the scenario has so few points that depth-first schedules are useful.
    pub tiny: bool,
    prepare: fn() -> SimImage,
    /// The name of the index to which commits write directly, if all stores have one.
    direct: Option<&'static str>,
    /// The prepared files, by the name of the index.
    prepared: Mutex<BTreeMap<String, SimImage>>,
    /// The function that runs one execution.
    pub body: fn(&SimImage, Twist),
    /// The seeded bug that is active under [`Twist::Canary`]. If this is `None`, the canary checks a wrong claim
    /// instead.
    pub bug: Option<SeededBug>,
}

impl Scenario {
    /// The files that an execution starts from.
    pub fn start(&self) -> SimImage {
        let index = indexes::current();
        let known = self.prepared.lock().expect("sound").get(&index.to_string()).cloned();
        known.unwrap_or_else(|| {
            let prepare = self.prepare;
            let made = explore::alone(move || indexes::with(index, prepare));
            self.prepared.lock().expect("sound").insert(index.to_string(), made.clone());
            made
        })
    }

    /// The index of the stores in the batch that has this seed.
    pub fn index(&self, seed: u64) -> Variant {
        self.direct.map_or_else(|| indexes::of(seed), Variant::direct)
    }

    /// A scenario for a test, without a store.
    #[cfg(test)]
    pub fn for_tests(name: &'static str, body: fn(&SimImage, Twist)) -> Scenario {
        Scenario {
            name,
            claim: "",
            tiny: false,
            prepare: SimImage::default,
            direct: None,
            prepared: Mutex::default(),
            body,
            bug: None,
        }
    }
}

/// The body of a scenario.
type Body = fn(&SimImage, Twist);

/// A scenario with an optional bug for its canary.
fn with_bug(
    name: &'static str,
    claim: &'static str,
    tiny: bool,
    prepare: fn() -> SimImage,
    body: Body,
    bug: Option<SeededBug>,
) -> Scenario {
    Scenario { name, claim, tiny, prepare, direct: None, prepared: Mutex::default(), body, bug }
}

/// A scenario whose canary is a mistake in the scenario.
fn scenario(name: &'static str, claim: &'static str, tiny: bool, prepare: fn() -> SimImage, body: Body) -> Scenario {
    with_bug(name, claim, tiny, prepare, body, None)
}

/// A scenario with an empty store, whose canary is a bug of the engine.
fn beside(name: &'static str, claim: &'static str, body: Body, bug: SeededBug) -> Scenario {
    with_bug(name, claim, false, prepare_empty, body, Some(bug))
}

/// A scenario with a B+-tree to whose leaves commits write directly, whose canary is a bug of the engine.
fn direct(name: &'static str, claim: &'static str, body: Body, bug: SeededBug) -> Scenario {
    Scenario { direct: Some("btree"), ..with_bug(name, claim, false, direct::prepare, body, Some(bug)) }
}

/// The same with a Bε-tree, to whose topmost buffers commits write directly.
fn parts(name: &'static str, claim: &'static str, body: Body, bug: SeededBug) -> Scenario {
    Scenario { direct: Some("betree"), ..direct(name, claim, body, bug) }
}

/// All scenarios.
pub fn all() -> &'static [Scenario] {
    static ALL: OnceLock<Vec<Scenario>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all = without_transactions();
        all.extend(with_transactions());
        all.extend(with_direct_writes());
        all
    })
}

fn without_transactions() -> Vec<Scenario> {
    let alone = |name, claim, body, bug| with_bug(name, claim, false, SimImage::default, body, Some(bug));
    vec![
        scenario("read", commit::READ, true, prepare_empty, commit::read),
        scenario("commit", commit::COMMIT, false, prepare_empty, commit::commit),
        scenario("crash", crash::CRASH, false, prepare_empty, crash::crash),
        scenario("pack", pack::PACK, false, prepare_empty, pack::pack),
        scenario("newest", pack::NEWEST, false, prepare_empty, pack::newest),
        scenario("folds", pack::FOLDS, false, prepare_empty, pack::folds),
        beside("dead", dead::DEAD, dead::dead, SeededBug::DeadRangeUnwatched),
        beside("pops", dead::POPS, dead::pops, SeededBug::PopOverlooksPut),
        beside("load", load::LOAD, load::load, SeededBug::ChunksLeftBehind),
        scenario("full", pack::FULL, false, prepare_empty, pack::full),
        scenario("swap", swap::SWAP, false, swap::prepare, swap::swap),
        scenario("drop", swap::DROP, false, swap::prepare, swap::drop_keyspace),
        scenario("pool", pool::POOL, false, SimImage::default, pool::pool),
        scenario("pool-pair", pool::PAIR, true, SimImage::default, pool::pair),
        alone("pool-reuse", pool::REUSE, pool::reuse, SeededBug::FrameNotLookedAt),
        alone("pool-hot", pool::HOT, pool::hot, SeededBug::HitNotNoted),
        scenario("pool-2q", pool::POOL, false, SimImage::default, pool::pool_2q),
        scenario("pool-2q-locked", pool::POOL, false, SimImage::default, pool::pool_2q_locked),
        scenario("pool-2q-pair", pool::PAIR, true, SimImage::default, pool::pair_2q),
        scenario("pool-2q-locked-pair", pool::PAIR, true, SimImage::default, pool::pair_2q_locked),
        alone("pool-2q-pinned", pool::PINNED, pool::pinned, SeededBug::PinnedBlockEvicted),
        alone("pool-2q-victim", pool::VICTIM, pool::victim, SeededBug::VictimNotCheckedAgain),
        alone("pool-2q-hot", pool::HOT_2Q, pool::hot_2q, SeededBug::SecondAccessNotSeen),
        alone("pool-claims", claims::CLAIMS, claims::claims, SeededBug::ReaderCountLost),
        alone("rows", rows::ROWS, rows::rows, SeededBug::LateRowTaken),
        alone("rows-merge", rows::ROWS, rows::merge, SeededBug::RowOfNewerRoot),
        alone("memtable", memtable::SPLIT, memtable::split, SeededBug::ChangedNodeTrusted),
        alone("memtable-deep", memtable::DEEP, memtable::deep, SeededBug::SplitWhileRead),
        scenario("close", backup::CLOSE, false, prepare_empty, backup::close),
        with_bug("close-read", close::READ, false, close::prepare, close::read, Some(SeededBug::AnswerAfterClose)),
        scenario("sync", sync::SYNC, false, prepare_empty, sync::sync),
        scenario("sync-large", sync::LARGE, false, prepare_empty, sync::large),
        beside("beside", beside::BESIDE, beside::beside, SeededBug::WatermarkPassesGap),
        beside("beside-seal", beside::SEAL, beside::seal, SeededBug::SealTooSoon),
        beside("kill", beside::KILL, beside::kill, SeededBug::WriteNotAwaited),
        beside("streams", crash::STREAMS, crash::streams, SeededBug::AppendOutOfTurn),
        beside("streams-cut", crash::STREAMS, crash::claims, SeededBug::SyncClaimsPastGap),
        beside("streams-paper", crash::PAPER, crash::paper, SeededBug::GenerationNotInherited),
        beside("streams-kill", beside::LAZY, beside::lazy, SeededBug::LazyLeftBehind),
    ]
}

fn with_direct_writes() -> [Scenario; 9] {
    [
        direct("direct-cut", direct::CUT, direct::cut, SeededBug::HotCutNotKept),
        direct("direct-cool", direct::COOL, direct::cool, SeededBug::HotStaleRoot),
        direct("direct-fold", direct::FOLD, direct::fold, SeededBug::HotHorizonIgnored),
        direct("direct-delete", direct::DELETE, direct::delete, SeededBug::HotDeleteDropped),
        direct("direct-values", direct::VALUES, direct::values, SeededBug::HotValueNotOwned),
        parts("parts-cool", direct::COOL, direct::cool, SeededBug::PartStaleRoot),
        parts("parts-early", direct::CUT, direct::cut, SeededBug::PartWrittenEarly),
        parts("parts-late", direct::DELETE, direct::delete, SeededBug::PartLateMessageActive),
        parts("parts-fold", direct::FOLD, direct::fold, SeededBug::PartHorizonHidden),
    ]
}

fn with_transactions() -> [Scenario; 13] {
    [
        scenario("tx-skew", tx::SKEW, false, prepare_empty, tx::skew),
        beside("tx-update", tx::UPDATE, tx::update, SeededBug::AppliedIsNext),
        beside("tx-insert", tx::INSERT, tx::insert, SeededBug::FootprintLacksPut),
        beside("tx-batch", tx::BATCH, tx::batch, SeededBug::FilterLacksKeys),
        beside("tx-fetch", tx::FETCH, tx::fetch, SeededBug::UpdateUnvalidated),
        beside("tx-delete", tx::RANGE_DELETE, tx::range_delete, SeededBug::FootprintRangeExact),
        beside("tx-phantom", tx::PHANTOM, tx::phantom, SeededBug::GapBehindLastRow),
        beside("tx-merges", tx::MERGES, tx::merges, SeededBug::FoldGroundsNewerStripes),
        beside("tx-packed", tx::PACKED, tx::packed, SeededBug::PackedChangeMissed),
        beside("tx-load", tx::LOAD, tx::load, SeededBug::DirectWriteUncounted),
        beside("tx-load-late", tx::LOAD, tx::load_late, SeededBug::LoadSearchedPast),
        scenario("tx-drop", tx::DROP, false, prepare_empty, tx::drop_keyspace),
        scenario("tx-close", tx::CLOSE, false, prepare_empty, tx::close),
    ]
}

/// A keyspace of plain rows.
const ROWS: &str = "rows";
/// A keyspace of counters.
const SUMS: &str = "sums";
/// A keyspace whose values record the order in which commits were applied.
const ORDER: &str = "order";
/// Memtable size in bytes, which is the smallest allowed size.
const MEMTABLE: usize = 4 << 10;
/// Blob threshold in bytes.
const LARGE_VALUE: usize = 2 << 10;

/// Returns the builder of a store on a device, with this number of workers.
fn builder(sim: &Arc<SimDevice>, workers: usize) -> StoreBuilder {
    Store::builder("explored")
        .device(ExploredDevice::new(sim.clone()))
        .background_threads(workers)
        .memory_budget(1 << 20)
        .memtable_bytes(MEMTABLE)
        .segment_bytes(64 << 10)
        .reserve_bytes(8 << 10)
        .log_streams(1)
        .index(indexes::options())
}

/// Opens the store of a device with this number of workers.
fn open(sim: &Arc<SimDevice>, workers: usize) -> Result<Store> {
    builder(sim, workers).open()
}

/// Opens the store of an image with two log streams and the smallest log segments.
fn open_streams(image: &SimImage, mode: Mode) -> (Arc<SimDevice>, Store) {
    let sim = SimDevice::from_image(image, 7);
    let builder = builder(&sim, 0).log_streams(2).segment_bytes(8 << 10).mode(mode);
    (sim, builder.open().expect("the store opens"))
}

/// Opens the store of an image.
fn open_image(image: &SimImage, workers: usize) -> (Arc<SimDevice>, Store) {
    let sim = SimDevice::from_image(image, 7);
    let store = open(&sim, workers).expect("the store opens");
    (sim, store)
}

/// Returns a closed store whose keyspaces are all empty.
fn prepare_empty() -> SimImage {
    let sim = SimDevice::new(7);
    let store = open(&sim, 0).expect("a new store");
    create(&store);
    store.close().expect("closed");
    sim.image()
}

fn create(store: &Store) {
    let options = || KeyspaceOptions::new().blob_threshold(LARGE_VALUE);
    store.keyspace_with(ROWS, options()).expect("created");
    store.keyspace_with(SUMS, options().merge(AddI64)).expect("created");
    store.keyspace_with(ORDER, options().merge(Append)).expect("created");
}

fn keyspace(store: &Store, name: &str) -> Keyspace {
    store.open_keyspace(name).expect("opened").expect("it was created")
}

/// Starts one thread for each body and waits for all threads.
fn threads<'a>(bodies: impl IntoIterator<Item = Box<dyn FnOnce() + Send + 'a>>) {
    shuttle::thread::scope(|scope| bodies.into_iter().for_each(|body| drop(scope.spawn(body))));
}

/// Puts the work of one thread into the form that [`threads`] accepts.
fn body<'a>(work: impl FnOnce() + Send + 'a) -> Box<dyn FnOnce() + Send + 'a> {
    Box::new(work)
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// All entries of a scan.
fn read_all(range: pandodb::Range) -> Result<Rows> {
    range.map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec()))).collect()
}

/// The value of a counter, which is 0 before the first addition.
fn counter(at: &KeyspaceAt, key: &str) -> i64 {
    number(at.get(key).expect("read").as_deref())
}

fn number(value: Option<&[u8]>) -> i64 {
    value.map_or(0, |bytes| i64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

/// Checks that `Store::verify` reports no damage.
fn verify(store: &Store) {
    let report = store.verify().expect("verified");
    assert!(report.is_clean(), "{:?}", report.problems);
}
