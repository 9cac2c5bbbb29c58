//! Tests of the exact bytes of a trunk on disk: a root record and the nodes under it, as defined in [`super::persist`].

use std::sync::Arc;

use super::node::{Branch, BranchId, Child, Node};
use super::{TYPE, persist};
use crate::base::{BlockAddr, Entry, KeyRange, Kind, OwnerId, PageNo, Result, Seqno, StoreId, key_hash};
use crate::blocks::BlockSource;
use crate::device::mem::MemDevice;
use crate::device::{Device, OpenHow};
use crate::filter::{FilterBuilder, Filters};
use crate::index::blobs::{BlobMap, Fanout};
use crate::index::runs::Deletes;
use crate::index::runs::MapletRef;
use crate::index::testing::mark;
use crate::index::{Core, IdSource, Index, IndexKind, IndexOptions, RootRecord};
use crate::memtable::ChunkPool;
use crate::pool::Pool;
use crate::rows::RowCache;
use crate::run::maplet::{MapletWriter, Member, ask, page_for};
use crate::run::{Run, RunBuilder, RunSlice};
use crate::space::data::DATA_FILE;
use crate::space::{BLOCK_HEADER, BlockKind, DataFile, Prefetch};

const STORE: StoreId = StoreId([7; 16]);

fn core(device: &MemDevice) -> Core {
    let data = DataFile::create(device, "data", STORE).unwrap();
    Core {
        data,
        pool: Arc::new(Pool::new(1 << 20)),
        chunks: Arc::new(ChunkPool::new(1)),
        rows: RowCache::new(1 << 20),
        ids: Arc::new(IdSource::new(20)),
        repair: true,
        repairs: Arc::default(),
        share: Default::default(),
    }
}

fn empty(core: &Core) -> BlobMap {
    BlobMap::new(core.pool.clone(), Fanout::PAGE)
}

/// A run of two puts, `a` and `m`.
fn run(core: &Core) -> Arc<RunSlice> {
    let mut builder = RunBuilder::new(core.data.clone(), OwnerId(5), 100);
    for (key, seqno) in [(b"a", 3), (b"m", 4)] {
        builder.push(Entry { key, seqno: Seqno(seqno), kind: Kind::Put, value: b"v" }).unwrap();
    }
    let meta = builder.finish().unwrap().unwrap();
    RunSlice::whole(Run::open(core.data.clone(), core.pool.clone(), meta).unwrap())
}

/// A root over two leaves. The branch of the root was flushed to the left leaf and is live for the right leaf.
fn trunk(core: &Core) -> Arc<Node> {
    let slice = run(core);
    let mut left = Node::new(KeyRange::new(Vec::new(), *b"h"), 0);
    let clipped = slice.clip(&left.range).unwrap().unwrap();
    left.branches.push(Branch {
        id: BranchId(8),
        fresh: true,
        slice: clipped,
        bytes: 70,
        weights: Arc::new([]),
        deletes: Deletes::default(),
        route: None,
    });
    let right = Node::new(KeyRange::new(*b"h", Vec::new()), 0);
    let mut root = Node::new(KeyRange::all(), 1);
    root.branches.push(Branch {
        id: BranchId(8),
        fresh: false,
        slice,
        bytes: 150,
        weights: Arc::new([70, 80]),
        deletes: Deletes::default(),
        route: None,
    });
    root.children = vec![Child { node: Arc::new(left), next: 1 }, Child { node: Arc::new(right), next: 0 }];
    root.assert_valid();
    Arc::new(root)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The body of the node at `page`, found by the length in front of the body; only zeros may follow the body.
fn body(core: &Core, page: u64) -> String {
    let block = core.data.read(BlockAddr { page: PageNo(page), pages: 1 }).unwrap();
    let at = BLOCK_HEADER + 4;
    let len = u32::from_le_bytes(block[BLOCK_HEADER..at].try_into().unwrap()) as usize;
    assert!(block[at + len..].iter().all(|&b| b == 0));
    hex(&block[at..at + len])
}

/// The description of the run, as defined in `run::meta`.
const RUN: &str = concat!(
    "05",                 // id
    "014002",             // one extent
    "01",                 // leaf pages
    "4001",               // root
    "00",                 // height
    "0000",               // no filter
    "00",                 // no tombstones
    "0161016d",           // first and last key
    "0304",               // seqnos
    "020000000002020200", // counters
);

fn root_body() -> String {
    // from, to, height, counts | branch: id, not fresh, run, slice, weights | children: dead branches, id, pages, both
    // pages
    ["0000", "01", "0102", "0800", RUN, "0000000101", "4650", "0114010442", "0015010543"].concat()
}

fn left_body() -> String {
    // from, to, height, counts | branch: id, fresh, run, slice
    ["000168", "00", "0100", "0801", RUN, "000168000101"].concat()
}

fn load(core: &Core, record: &RootRecord) -> Result<persist::Loaded> {
    persist::load(core, record, &mut Prefetch::new(core.data.clone()))
}

#[test]
fn root_record_and_nodes() {
    let core = core(&MemDevice::new());
    let root = trunk(&core);
    let blobs = core.data.alloc(3).unwrap();
    let mut map = empty(&core);
    map.insert(blobs.start.0, 3);
    map.insert(blobs.start.0 + 10, 2);
    let record = persist::store(&core, &root, &map, 9).unwrap();
    // The record has the version, the reference to the root node and the identity of the next branch. The map of large
    // values follows, with its levels, its two sums and the address of its root.
    assert_eq!(hex(&record), concat!("03", "16010644", "09", "01", "02", "05", "17010745"));
    let page = |node: &Node| node.stored().unwrap().copies.0.map(|addr| addr.page.0);
    for copy in 0..2 {
        let nodes = [body(&core, page(&root)[copy]), body(&core, page(&root.children[0].node)[copy])];
        assert_eq!(nodes, [root_body(), left_body()]);
    }
}

#[test]
fn a_stored_trunk_is_loaded_and_not_rewritten() {
    let device = MemDevice::new();
    let core = core(&device);
    let root = trunk(&core);
    let record = persist::store(&core, &root, &empty(&core), 9).unwrap();
    let data = DataFile::open(DataFile::open_raw(&*device, true).unwrap(), STORE).unwrap();
    let again = Core { data, ..core };
    let loaded = load(&again, &RootRecord { through: Seqno(4), bytes: record.clone() }).unwrap();
    assert_eq!(loaded.next_branch, 9);
    assert!(loaded.blobs.is_empty());
    let of_version_2 = RootRecord { through: Seqno(4), bytes: [&[2], &record[1..]].concat() };
    assert!(load(&again, &of_version_2).err().expect("no release has written it").is_corruption());
    let shape = |node: &Node| {
        let branches: Vec<_> = node.branches.iter().map(|b| (b.id, b.fresh, b.weights.to_vec())).collect();
        (node.range.clone(), node.height, branches)
    };
    assert_eq!(shape(&loaded.root), shape(&root));
    for (child, old) in loaded.root.children.iter().zip(&root.children) {
        assert_eq!((child.next, shape(&child.node)), (old.next, shape(&old.node)));
    }
    let written = again.data.stats().written_bytes;
    assert_eq!(persist::store(&again, &loaded.root, &loaded.blobs, 9).unwrap(), record);
    assert_eq!(again.data.stats().written_bytes, written, "no node is dirty");
}

/// A maplet of two runs that have quotient filters.
fn routed(core: &Core) -> (Vec<Arc<RunSlice>>, Arc<Run>) {
    let mut slices = Vec::new();
    for (id, prefix) in [(5, "a"), (6, "b")] {
        let filter = FilterBuilder::new(Filters::Maplet, 2);
        let mut builder = RunBuilder::new(core.data.clone(), OwnerId(id), 100).with_filter(filter);
        for i in 0..300 {
            let key = format!("{prefix}{i:03}").into_bytes();
            builder.push(Entry { key: &key, seqno: Seqno(id), kind: Kind::Put, value: &[7; 20] }).unwrap();
        }
        let meta = builder.finish().unwrap().unwrap();
        slices.push(RunSlice::whole(Run::open(core.data.clone(), core.pool.clone(), meta).unwrap()));
    }
    let member = |(value, slice): (u8, &Arc<RunSlice>)| Member { run: slice.run().clone(), values: vec![Some(value)] };
    let members = (0..).zip(&slices).map(member).collect();
    let mut writer = MapletWriter::new(core.data.clone(), OwnerId(7), members, 0).unwrap();
    while !writer.step(1).unwrap().1 {}
    let meta = writer.finish().unwrap().unwrap();
    (slices, Run::open(core.data.clone(), core.pool.clone(), meta).unwrap())
}

#[test]
fn a_reloaded_branch_has_its_maplet() {
    let device = MemDevice::new();
    let core = core(&device);
    let (slices, maplet) = routed(&core);
    let mut root = Node::new(KeyRange::all(), 0);
    for (value, slice) in (0..).zip(slices) {
        let route = Some(MapletRef::new(maplet.clone(), value, slice.run()));
        let (id, weights) = (BranchId(u64::from(value)), Arc::new([]));
        root.branches.push(Branch {
            id,
            fresh: value > 0,
            slice,
            bytes: 70,
            weights,
            deletes: Deletes::default(),
            route,
        });
    }
    let root = Arc::new(root);
    let record = persist::store(&core, &root, &empty(&core), 9).unwrap();
    let data = DataFile::open(DataFile::open_raw(&*device, true).unwrap(), STORE).unwrap();
    let again = Core { data, pool: Arc::new(Pool::new(1 << 20)), ..core.clone() };
    let loaded = load(&again, &RootRecord { through: Seqno(4), bytes: record }).unwrap();
    // The fields after the slice are: the maplet's id, its one extent, no leaves, no root, height 0. Then come the
    // filter (one page, kind 2, from position 0 with 19 bits), no tombstones, no keys and the seqnos. The counters have
    // 599 entries, because two keys have the same fingerprint and value. The value is last.
    let description = concat!("07", "01", "800101", "00", "0000", "00", "8180808020", "00", "13", "00", "0000", "0000");
    let route = concat!("0000000000d704000000", "00");
    let body = body(&core, root.stored().unwrap().copies.0[0].page.0);
    assert!(body.contains(&[description, route].concat()), "{body}");
    for (branch, old) in loaded.root.branches.iter().zip(&root.branches) {
        let (route, old_route) = (branch.route.as_ref().unwrap(), old.route.as_ref().unwrap());
        assert_eq!((branch.fresh, route.value), (old.fresh, old_route.value));
        assert_eq!(route.maplet.meta(), maplet.meta());
        let hash = key_hash(branch.slice.low());
        let page = route.maplet.load(page_for(&route.maplet, hash).unwrap(), BlockKind::RunFilter).unwrap();
        let values = ask(Some(&page), hash).unwrap();
        assert!(values.contains(route.value) && !values.contains(1 - route.value));
    }
    let maplets: Vec<_> = loaded.root.maplets().collect();
    assert!(maplets.len() == 1 && Arc::strong_count(maplets[0]) == 2, "both branches share the maplet");
}

#[test]
fn an_invalid_trunk_is_refused() {
    let device = MemDevice::new();
    let core = core(&device);
    let load = |root: &Arc<Node>, next_branch| {
        let bytes = persist::store(&core, root, &empty(&core), next_branch).unwrap();
        let data = DataFile::open(DataFile::open_raw(&*device, true).unwrap(), STORE).unwrap();
        let fresh = Core { data, pool: Arc::new(Pool::new(1 << 20)), ..core.clone() };
        load(&fresh, &RootRecord { through: Seqno(4), bytes }).map(|loaded| loaded.next_branch)
    };
    assert_eq!(load(&trunk(&core), 9).unwrap(), 9);
    assert!(load(&trunk(&core), 8).unwrap_err().is_corruption(), "branch 8 is there already");
    // If the root had a smaller range, a scan would never find the end of the keys.
    let half = Arc::new(Node::new(KeyRange::new(Vec::new(), *b"m"), 0));
    assert!(load(&half, 9).unwrap_err().is_corruption());
}

/// Opens a tree and marks the tree's pages as used.
fn open(core: &Core, bytes: Vec<u8>) -> Result<Arc<dyn Index>> {
    let settings = IndexOptions::from(IndexKind::of(&TYPE)).settings(1 << 20, None);
    let record = RootRecord { through: Seqno(4), bytes };
    let index = (TYPE.open)(core, &settings, &record, &mut Prefetch::new(core.data.clone()))?;
    mark(core, &*index).map(|()| index)
}

#[test]
fn a_copy_in_the_pages_of_a_run_is_not_repaired() {
    let device = MemDevice::new();
    let core = core(&device);
    let root = trunk(&core);
    let record = persist::store(&core, &root, &empty(&core), 9).unwrap();
    let reopened = || {
        let data = DataFile::open(DataFile::open_raw(&*device, true).unwrap(), STORE).unwrap();
        Core { data, repairs: Arc::default(), ..core.clone() }
    };
    open(&reopened(), record).unwrap();
    // An opening reads the node before it knows which pages the run uses.
    let mut stored = root.stored().unwrap();
    stored.copies.0[1].page = root.branches[0].slice.run().owned()[0].start;
    let mut bytes = vec![3];
    stored.encode(&mut bytes);
    bytes.extend([9, 0]);
    let before = core.data.read(stored.copies.0[1]).unwrap();
    let error = open(&reopened(), bytes).err().expect("a page has two owners");
    assert!(error.is_corruption() && error.to_string().contains("claimed twice"), "{error}");
    assert_eq!(core.data.read(stored.copies.0[1]).unwrap()[..], before[..], "nothing was written");
}

#[test]
fn a_copy_outside_the_file_is_not_repaired() {
    let device = MemDevice::new();
    let core = core(&device);
    let mut bytes = persist::store(&core, &trunk(&core), &empty(&core), 9).unwrap();
    // In the record, the page of the second copy precedes the next branch's identity and the levels of the map.
    let far = bytes.len() - 3..bytes.len() - 2;
    bytes.splice(far, [0xff, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    let before = device.open(DATA_FILE, OpenHow::default()).unwrap().len().unwrap();
    let data = DataFile::open(DataFile::open_raw(&*device, true).unwrap(), STORE).unwrap();
    let fresh = Core { data, pool: Arc::new(Pool::new(1 << 20)), ..core.clone() };
    let error = open(&fresh, bytes).err().expect("a copy is missing");
    assert!(error.is_corruption(), "{error}");
    assert_eq!(device.open(DATA_FILE, OpenHow::default()).unwrap().len().unwrap(), before, "nothing was written");
}
