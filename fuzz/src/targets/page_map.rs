//! Target: the allocation map, which records the allocated pages.
//!
//! Input: a list of operations: take (allocate given pages), allocate, release, grow, shrink.
//!
//! Properties: the map agrees with a list of one flag per page. The map allocates only free pages. `take` fails only if
//! a page is allocated or beyond the end. `alloc` fails only if there is no sequence of adjacent, completely free
//! extents that is long enough.

use pandodb::base::{EXTENT_PAGES, Extent, PageNo};
use pandodb::space::map::PageMap;

use crate::bytes::Bytes;
use crate::{Target, mutate};

/// The target.
pub const TARGET: Target =
    Target { name: "page_map", max_len: 256, memory: 256 << 10, run, mutate: mutate::plain, seeds };

/// The maximum number of extents that the model tracks.
const MAX_EXTENTS: u64 = 64;

fn run(data: &[u8]) {
    let mut input = Bytes(data);
    let mut map = PageMap::default();
    let mut model: Vec<bool> = Vec::new();
    let mut held: Vec<Extent> = Vec::new();
    while !input.is_empty() {
        let tag = input.u8();
        match tag % 5 {
            0 => alloc(&mut map, &mut model, &mut held, u32::from(tag / 5) * 3 + 1),
            1 => take(&mut map, &mut model, &mut held, &mut input),
            2 if !held.is_empty() => {
                let extent = held.swap_remove(usize::from(input.u8()) % held.len());
                map.release(extent);
                pages_of(&mut model, extent).fill(false);
            }
            3 => {
                map.grow((map.extents() + u64::from(tag / 32)).min(MAX_EXTENTS));
                model.resize((map.extents() * u64::from(EXTENT_PAGES)) as usize, false);
            }
            _ => {
                let cut = map.free_tail().min(u64::from(tag / 5));
                map.shrink(cut);
                let left = model.len() - (cut * u64::from(EXTENT_PAGES)) as usize;
                assert!(model[left..].iter().all(|taken| !taken), "pages that are cut off must be free");
                model.truncate(left);
            }
        }
        assert_eq!(map.taken_pages(), model.iter().filter(|taken| **taken).count() as u64);
        assert_eq!(map.extents() * u64::from(EXTENT_PAGES), model.len() as u64);
        let tail = model.rchunks_exact(EXTENT_PAGES as usize).take_while(|extent| extent.iter().all(|t| !t)).count();
        assert_eq!(map.free_tail(), tail as u64);
    }
}

fn pages_of(model: &mut [bool], extent: Extent) -> &mut [bool] {
    &mut model[extent.start.0 as usize..extent.end() as usize]
}

fn alloc(map: &mut PageMap, model: &mut [bool], held: &mut Vec<Extent>, pages: u32) {
    match map.alloc(pages) {
        Some(extent) => {
            assert_eq!(extent.pages, pages);
            assert!(pages_of(model, extent).iter().all(|taken| !taken), "{extent:?} was handed out twice");
            pages_of(model, extent).fill(true);
            held.push(extent);
        }
        None => {
            let want = pages.div_ceil(EXTENT_PAGES) as usize;
            let mut row = 0;
            for extent in model.chunks_exact(EXTENT_PAGES as usize) {
                row = if extent.iter().all(|taken| !taken) { row + 1 } else { 0 };
                assert!(row < want, "{pages} pages were refused although there is room");
            }
        }
    }
}

fn take(map: &mut PageMap, model: &mut [bool], held: &mut Vec<Extent>, input: &mut Bytes<'_>) {
    let extent = Extent { start: PageNo(input.number() & (u64::MAX >> 12)), pages: input.number() as u32 };
    let inside = extent.end() <= model.len() as u64;
    let free = inside && extent.pages > 0 && pages_of(model, extent).iter().all(|taken| !taken);
    let all = inside && pages_of(model, extent).iter().all(|taken| *taken);
    assert_eq!(map.is_taken(extent), all);
    assert_eq!(map.take(extent), free);
    if free {
        pages_of(model, extent).fill(true);
        held.push(extent);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    vec![
        vec![253, 0, 5, 10, 1, 40, 20, 2, 1, 250, 4, 253, 245, 2, 0, 9],
        vec![253, 253, 0, 0, 0, 0, 0, 2, 1, 2, 0, 60, 1, 1, 1, 1, 0, 33, 254],
    ]
}
