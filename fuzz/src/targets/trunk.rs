//! Target: the trunk of an `stbe` index, which consists of a root record and the nodes to which the record refers.
//!
//! Input: the root record, then the bodies of up to four trunk nodes, then the bodies of up to three nodes of the map
//! of large values. The record and each body are preceded by their length (two bytes). The bodies are written to fixed
//! pages with right checksums. The same file contains two runs to which branches can refer.
//!
//! Properties: a loaded trunk satisfies its invariants. All pages that an opened index lists can be marked as
//! allocated. Storing the trunk again writes no node, and loading the result gives the same trunk. A verification, a
//! scan and a few steps of compaction terminate. Every error reports corruption and names the file.

use std::sync::{Arc, LazyLock};

use pandodb::base::codec::put_varint;
use pandodb::base::{
    Entry, EntryBlock, Error, Extent, KeyRange, Kind, OwnerId, RangeTombstone, Result, Seqno, StoreId,
};
use pandodb::device::sim::{SimDevice, SimImage};
use pandodb::filter::{FilterBuilder, Filters};
use pandodb::index::blobs::{BlobMap, Fanout};
use pandodb::index::runs::MapletRef;
use pandodb::index::stbe::node::{Branch, BranchId, Child, Node};
use pandodb::index::stbe::{Policy, Shape, Stbe, persist};
use pandodb::index::stored::Stored;
use pandodb::index::{Core, IdSource, Index, IndexView, RootRecord, Visitor};
use pandodb::memtable::ChunkPool;
use pandodb::pool::Pool;
use pandodb::resolve::Stripes;
use pandodb::rows::RowCache;
use pandodb::run::maplet::{MapletWriter, Member};
use pandodb::run::{Compression, Run, RunBuilder, RunSlice};
use pandodb::space::data::DATA_FILE;
use pandodb::space::{BlockKind, DataFile, Prefetch};

use pandodb::base::random::Rng;

use crate::bytes::Bytes;
use crate::repair::{self, PAGE};
use crate::{Target, assert_named, mutate as change};

/// The target.
pub const TARGET: Target = Target { name: "trunk", max_len: 4096, memory: 24 << 20, run, mutate, seeds };

const STORE: StoreId = StoreId([9; 16]);
/// The first page of the input's nodes. Each node has two copies of one page.
const NODES: u64 = 224;
/// The owner id of the input's first node.
const FIRST_ID: u64 = 20;
/// An input consists of parts: the root record, the trunk nodes, and the nodes of the map of large values. This is the
/// number of the first part that is a node of the map.
const FIRST_OF_MAP: usize = 5;
/// The maximum number of parts of an input.
const MOST_PARTS: usize = 8;
const THROUGH: Seqno = Seqno(1000);

/// A file with two runs, and a trunk over them.
static BASE: LazyLock<(SimImage, Vec<u8>)> = LazyLock::new(base);

fn core(image: &SimImage) -> Result<Core> {
    let device = SimDevice::from_image(image, 1);
    let data = DataFile::open(DataFile::open_raw(&*device, true)?, STORE)?;
    Ok(Core {
        data,
        pool: Arc::new(Pool::new(4 << 20)),
        chunks: Arc::new(ChunkPool::new(1)),
        rows: RowCache::new(0),
        ids: Arc::new(IdSource::new(100)),
        repair: true,
        repairs: Default::default(),
        share: Default::default(),
    })
}

fn run_of(core: &Core, id: u64, keys: std::ops::Range<u64>, tombstone: Option<(&str, &str)>) -> Arc<RunSlice> {
    let filter = FilterBuilder::new(Filters::Maplet, 2);
    let mut builder = RunBuilder::new(core.data.clone(), OwnerId(id), 0).with_filter(filter);
    for i in keys {
        let (key, value) = (format!("key{:04}", i * 13), vec![i as u8; 60]);
        let entry = Entry { key: key.as_bytes(), seqno: Seqno(id * 100 + i), kind: Kind::Put, value: &value };
        builder.push(entry).expect("written");
    }
    if let Some((from, to)) = tombstone {
        builder.push_tombstone(RangeTombstone { range: KeyRange::new(from, to), seqno: Seqno(id * 100 + 99) });
    }
    let meta = builder.finish().expect("written").expect("not empty");
    RunSlice::whole(Run::open(core.data.clone(), core.pool.clone(), meta).expect("opens"))
}

/// Merges the filters of both runs into a maplet.
fn maplet_of(core: &Core, runs: [&Arc<RunSlice>; 2]) -> Arc<Run> {
    let member = |(value, slice): (u8, &Arc<RunSlice>)| Member { run: slice.run().clone(), values: vec![Some(value)] };
    let members = (0..).zip(runs).map(member).collect();
    let mut writer = MapletWriter::new(core.data.clone(), OwnerId(4), members, 0).expect("sound filters");
    while !writer.step(1).expect("written").1 {}
    let meta = writer.finish().expect("written").expect("not empty");
    Run::open(core.data.clone(), core.pool.clone(), meta).expect("opens")
}

fn branch(id: u64, slice: &Arc<RunSlice>, range: &KeyRange, weights: &[u64], route: Option<(&Arc<Run>, u8)>) -> Branch {
    let route = route.map(|(maplet, value)| MapletRef::new(maplet.clone(), value, slice.run()));
    let slice = slice.clip(range).expect("reads").expect("something is there");
    let bytes = slice.bytes();
    Branch {
        id: BranchId(id),
        fresh: id % 2 == 1,
        slice,
        bytes,
        weights: weights.into(),
        deletes: Default::default(),
        route,
    }
}

/// Creates a trunk with a root and two leaves. One branch was flushed to the left leaf, and another branch is in both
/// leaves. Two branches of different nodes use a maplet.
fn base() -> (SimImage, Vec<u8>) {
    let device = SimDevice::new(1);
    let data = DataFile::create(&*device, DATA_FILE, STORE).expect("made");
    let core = Core {
        data,
        pool: Arc::new(Pool::new(4 << 20)),
        chunks: Arc::new(ChunkPool::new(1)),
        rows: RowCache::new(0),
        ids: Arc::new(IdSource::new(FIRST_ID)),
        repair: true,
        repairs: Default::default(),
        share: Default::default(),
    };
    let old = run_of(&core, 2, 0..90, None);
    let new = run_of(&core, 3, 20..50, Some(("key02", "key03")));
    let maplet = maplet_of(&core, [&old, &new]);
    let ranges = [KeyRange::new("", "key0500"), KeyRange::new("key0500", "")];
    let mut leaves: Vec<Node> = ranges.iter().map(|range| Node::new(range.clone(), 0)).collect();
    for leaf in &mut leaves {
        leaf.branches.push(branch(4, &old, &leaf.range, &[], Some((&maplet, 0))));
    }
    leaves[0].branches.push(branch(5, &new, &ranges[0], &[], None));
    let mut root = Node::new(KeyRange::all(), 1);
    root.branches.push(branch(5, &new, &root.range, &[4096, 8192], Some((&maplet, 1))));
    root.children = leaves.into_iter().zip([1, 0]).map(|(node, next)| Child { node: Arc::new(node), next }).collect();
    root.assert_valid();
    let root = Arc::new(root);
    let runs = device.image();
    let mut blobs = BlobMap::new(core.pool.clone(), Fanout::new(4));
    [(160, 3), (168, 1), (170, 2), (180, 1), (190, 4)].into_iter().for_each(|(start, len)| blobs.insert(start, len));
    persist::store(&core, &root, &blobs, 9).expect("written");
    // The bodies of the nodes are built in the form that they have in an input: children come before their parent, and
    // references lead to the fixed pages.
    let mut bodies = Vec::new();
    for node in root.children.iter().map(|child| &child.node).chain([&root]) {
        let stored = node.stored().expect("just written");
        bodies.push((stored.id.0, stored.copies.0.map(|addr| addr.page.0), body(&core, stored, BlockKind::TrunkNode)));
    }
    // The root of the map comes first in the list of pinned nodes, but a parent is written after its children.
    let mut of_map = Vec::new();
    for stored in blobs.pin().stored.into_iter().rev() {
        of_map.push((
            stored.id.0,
            stored.copies.0.map(|addr| addr.page.0),
            body(&core, stored, BlockKind::LargeValueMap),
        ));
    }
    assert_eq!(of_map.len(), 3, "a root over two leaves");
    let map_place =
        |nth: usize| place(FIRST_ID + (FIRST_OF_MAP + nth - 1) as u64, pages_of((FIRST_OF_MAP + nth - 1) as u64));
    let mut record = vec![3];
    record.extend(place(FIRST_ID + 2, pages_of(2)));
    // These fields are the number of the next branch, and the numbers of levels, ranges and pages of the map.
    [9, 2, 5, 11].into_iter().for_each(|number| put_varint(&mut record, number));
    record.extend(map_place(2));
    let mut input = Vec::new();
    put_part(&mut input, &record);
    for (i, (_, _, body)) in bodies.iter().enumerate() {
        let mut body = body.clone();
        if i == 2 {
            // The references to the children are at the end of the root's body.
            for (child, (id, pages, _)) in bodies[..2].iter().enumerate() {
                replace(&mut body, &place(*id, *pages), &place(FIRST_ID + child as u64, pages_of(child as u64)));
            }
        }
        put_part(&mut input, &body);
    }
    put_part(&mut input, &[]);
    for (i, (_, _, body)) in of_map.iter().enumerate() {
        let mut body = body.clone();
        if i == 2 {
            for (child, (id, pages, _)) in of_map[..2].iter().enumerate() {
                replace(&mut body, &place(*id, *pages), &map_place(child));
            }
        }
        put_part(&mut input, &body);
    }
    (runs, input)
}

/// The body of a node that was written.
fn body(core: &Core, stored: Stored, kind: BlockKind) -> Vec<u8> {
    let block = stored.copies.read(&mut Prefetch::new(core.data.clone()), stored.id, kind).expect("reads");
    let len = u32::from_le_bytes(block[16..20].try_into().expect("4 bytes")) as usize;
    block[20..20 + len].to_vec()
}

/// The pages of the two copies of an input's node.
fn pages_of(node: u64) -> [u64; 2] {
    [NODES + 2 * node, NODES + 2 * node + 1]
}

/// A reference to a node, as encoded in its parent.
fn place(id: u64, [first, second]: [u64; 2]) -> Vec<u8> {
    let mut out = Vec::new();
    [id, 1, first, second].into_iter().for_each(|number| put_varint(&mut out, number));
    out
}

fn replace(bytes: &mut Vec<u8>, old: &[u8], new: &[u8]) {
    let at = bytes.windows(old.len()).rposition(|window| window == old).expect("a child's place");
    bytes.splice(at..at + old.len(), new.iter().copied());
}

fn put_part(out: &mut Vec<u8>, part: &[u8]) {
    out.extend_from_slice(&(part.len() as u16).to_le_bytes());
    out.extend_from_slice(part);
}

/// Splits an input into a root record and bodies.
fn parts(data: &[u8]) -> Vec<&[u8]> {
    let mut input = Bytes(data);
    let mut parts = Vec::new();
    while !input.is_empty() && parts.len() < MOST_PARTS {
        let len = usize::from(input.u16());
        parts.push(input.take(len));
    }
    parts
}

fn run(data: &[u8]) {
    let mut image = BASE.0.clone();
    let parts = parts(data);
    let record = RootRecord { through: THROUGH, bytes: parts.first().map_or(Vec::new(), |part| part.to_vec()) };
    for (i, body) in parts.iter().skip(1).enumerate() {
        let id = FIRST_ID + i as u64;
        let mut block = vec![0; PAGE];
        let body = &body[..body.len().min(PAGE - 20)];
        let kind = if i + 1 < FIRST_OF_MAP { BlockKind::TrunkNode } else { BlockKind::LargeValueMap };
        block[4] = kind as u8;
        block[8..12].copy_from_slice(&1u32.to_le_bytes());
        block[16..20].copy_from_slice(&(body.len() as u32).to_le_bytes());
        block[20..20 + body.len()].copy_from_slice(body);
        for page in pages_of(i as u64) {
            repair::block(&mut block, &STORE.0, id, page);
            image.write(DATA_FILE, page * PAGE as u64, &block);
        }
    }
    if !record.bytes.is_empty() {
        load(&image, &record);
    }
    use_it(&image, &record);
}

/// The contents of a node, without the location of the node.
type Said = (Arc<KeyRange>, u32, Vec<(BranchId, bool, OwnerId, KeyRange, Vec<u64>)>, Vec<u64>);

fn shapes(root: &Arc<Node>) -> Vec<Said> {
    let mut shapes = Vec::new();
    root.walk(&mut |node| {
        let branch = |b: &Branch| (b.id, b.fresh, b.slice.run().meta().id, b.slice.range().clone(), b.weights.to_vec());
        let branches = node.branches.iter().map(branch).collect();
        let next = node.children.iter().map(|child| child.next).collect();
        shapes.push((node.range.clone(), node.height, branches, next));
    });
    shapes
}

fn load(image: &SimImage, record: &RootRecord) {
    let core = core(image).expect("the file is there");
    let loaded = match persist::load(&core, record, &mut Prefetch::new(core.data.clone())) {
        Err(error) => return crate::assert_corruption(&error),
        Ok(loaded) => loaded,
    };
    loaded.root.walk(&mut |node| {
        node.assert_valid();
        assert!(node.stored().is_some(), "it was read");
    });
    assert_eq!(loaded.blobs.problem(), None);
    let written = core.data.stats().written_bytes;
    let bytes = persist::store(&core, &loaded.root, &loaded.blobs, loaded.next_branch).expect("nothing to write");
    assert_eq!(core.data.stats().written_bytes, written, "a node that is on disk was written again");
    let fresh = self::core(image).expect("the file is there");
    let again = persist::load(&fresh, &RootRecord { through: THROUGH, bytes }, &mut Prefetch::new(fresh.data.clone()))
        .expect("what was encoded");
    assert_eq!(shapes(&again.root), shapes(&loaded.root));
    assert_eq!(again.next_branch, loaded.next_branch);
    assert!(again.blobs.iter().eq(loaded.blobs.iter()));
}

/// Collects the problems that a verification reports.
#[derive(Default)]
struct Seen {
    problems: Vec<Error>,
}

impl Visitor for Seen {
    fn block(&mut self, _: BlockKind, _: u64) {}
    fn entry(&mut self, _: &Entry<'_>) {}
    fn problem(&mut self, problem: Error) {
        self.problems.push(problem);
    }
}

fn use_it(image: &SimImage, record: &RootRecord) {
    let core = core(image).expect("the file is there");
    let (policy, filters) = (Policy::default(), Filters::Maplet);
    let compression = Compression::None;
    let shape =
        Shape { fanout: 3, memtable_bytes: 4096, leaf_bytes: 16_384, policy, filters, maplet_width: 2, compression };
    let mut prefetch = Prefetch::new(core.data.clone());
    let index = match Stbe::open(core.clone(), shape, None, record, &mut prefetch) {
        // An error in the root record does not name a file, because only the caller knows the location of the record.
        Err(error) => return crate::assert_corruption(&error),
        Ok(index) => index,
    };
    // Marks the pages of the index, as the store does when it is opened.
    let mut marked = Ok(());
    index.for_each_extent(&mut |extent: Extent| {
        if marked.is_ok() {
            marked = core.data.mark(extent);
        }
    });
    if let Err(error) = marked {
        return crate::assert_corruption(&error);
    }
    index.for_each_extent(&mut |extent| assert!(core.data.is_taken(extent)));
    core.data.end_marking();
    let mut seen = Seen::default();
    let verified = index.inspect().pin().check(&mut seen);
    seen.problems.iter().chain(verified.as_ref().err()).for_each(assert_named);
    for reverse in [false, true] {
        if let Err(error) = scan(index.view(), reverse) {
            assert_named(&error);
        }
    }
    for _ in 0..20 {
        match index.step(64 << 10, &Stripes::default) {
            Ok(progress) if progress.idle => break,
            Ok(_) => {}
            Err(error) => return assert_named(&error),
        }
    }
}

fn scan(view: Arc<dyn IndexView>, reverse: bool) -> Result<()> {
    let mut cursor = view.cursor(Arc::default(), reverse)?;
    let mut block = EntryBlock::new();
    for _ in 0..1000 {
        block.clear();
        cursor.fill(4096, &mut block)?;
        if block.is_empty() {
            return Ok(());
        }
    }
    panic!("a scan does not end");
}

/// Mutates one part of an input and corrects the length field of this part.
fn mutate(input: &mut Vec<u8>, rng: &mut Rng) {
    if rng.index(8) == 0 {
        return change::plain(input, rng);
    }
    let mut parts: Vec<Vec<u8>> = parts(input).into_iter().map(<[u8]>::to_vec).collect();
    if parts.is_empty() {
        return input.extend_from_slice(&BASE.1);
    }
    let at = rng.index(parts.len());
    if rng.index(10) == 0 {
        let other = rng.index(parts.len());
        parts.swap(at, other);
    } else {
        change::plain(&mut parts[at], rng);
    }
    input.clear();
    parts.iter().for_each(|part| put_part(input, &part[..part.len().min(PAGE)]));
}

fn seeds() -> Vec<Vec<u8>> {
    let mut leaf = Vec::new();
    let mut record = vec![3];
    record.extend(place(FIRST_ID, pages_of(0)));
    [1, 0].into_iter().for_each(|number| put_varint(&mut record, number));
    put_part(&mut leaf, &record);
    put_part(&mut leaf, &[0, 0, 0, 0, 0]);
    vec![BASE.1.clone(), leaf]
}
