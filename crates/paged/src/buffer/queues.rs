//! The two queues of 2Q as lists of frames (000 §5.1.2, Listings 5.1 and 5.2).
//!
//! ```text
//!   first request ──▶ FIFO ──▶ victims first
//!                      │ second request
//!                      ▼
//!                     LRU  ──▶ victims if no page of the FIFO is unpinned; a request moves a page to the back
//! ```
//!
//! A list has no nodes of its own: each frame has a pair of links.
//!
//! Invariants: a frame is in at most one list; the links of neighbours agree.

/// No frame.
const NIL: u32 = u32::MAX;

/// The list that a frame is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// None.
    #[default]
    None,
    /// Requested once.
    Fifo,
    /// Requested at least twice.
    Lru,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
    which: Which,
}

const UNLINKED: Link = Link { before: NIL, after: NIL, which: Which::None };

#[derive(Clone, Copy, Debug)]
struct List {
    oldest: u32,
    newest: u32,
    len: usize,
}

const EMPTY: List = List { oldest: NIL, newest: NIL, len: 0 };

/// Both queues.
#[derive(Debug)]
pub struct Queues {
    links: Vec<Link>,
    fifo: List,
    lru: List,
}

impl Queues {
    /// Empty queues.
    pub fn new() -> Queues {
        Queues { links: Vec::new(), fifo: EMPTY, lru: EMPTY }
    }

    fn list(&mut self, which: Which) -> &mut List {
        match which {
            Which::Fifo => &mut self.fifo,
            Which::Lru => &mut self.lru,
            Which::None => panic!("no list"),
        }
    }

    /// The list that `frame` is in.
    pub fn which(&self, frame: u32) -> Which {
        self.links.get(frame as usize).map_or(Which::None, |link| link.which)
    }

    /// Appends a frame to a list, as its newest.
    pub fn push(&mut self, frame: u32, which: Which) {
        if self.links.len() <= frame as usize {
            self.links.resize(frame as usize + 1, UNLINKED);
        }
        assert_eq!(self.which(frame), Which::None, "a frame is in one list");
        let list = self.list(which);
        let newest = list.newest;
        list.newest = frame;
        list.len += 1;
        if newest == NIL {
            list.oldest = frame;
        } else {
            self.links[newest as usize].after = frame;
        }
        self.links[frame as usize] = Link { before: newest, after: NIL, which };
    }

    /// Removes a frame from its list, if it is in one.
    pub fn remove(&mut self, frame: u32) {
        if self.which(frame) == Which::None {
            return;
        }
        let Link { before, after, which } = self.links[frame as usize];
        let list = self.list(which);
        list.len -= 1;
        if before == NIL {
            list.oldest = after;
        }
        if after == NIL {
            list.newest = before;
        }
        if before != NIL {
            self.links[before as usize].after = after;
        }
        if after != NIL {
            debug_assert_eq!(self.links[after as usize].before, frame, "links agree");
            self.links[after as usize].before = before;
        }
        self.links[frame as usize] = UNLINKED;
    }

    /// Records a request (Listing 5.1).
    pub fn touch(&mut self, frame: u32) {
        let next = if self.which(frame) == Which::None { Which::Fifo } else { Which::Lru };
        self.remove(frame);
        self.push(frame, next);
    }

    /// The frames of a list, the oldest first.
    pub fn oldest_first(&self, which: Which) -> impl Iterator<Item = u32> + '_ {
        let oldest = match which {
            Which::Fifo => self.fifo.oldest,
            Which::Lru => self.lru.oldest,
            Which::None => NIL,
        };
        let next = |frame: &u32| Some(self.links[*frame as usize].after).filter(|&after| after != NIL);
        std::iter::successors((oldest != NIL).then_some(oldest), next)
    }

    /// The oldest frame of the FIFO queue, or else of the LRU queue, for which `free` holds (Listing 5.2).
    pub fn victim(&self, free: impl Fn(u32) -> bool) -> Option<u32> {
        [Which::Fifo, Which::Lru].into_iter().find_map(|which| self.oldest_first(which).find(|&frame| free(frame)))
    }

    /// The number of frames in both lists.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.fifo.len + self.lru.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(queues: &Queues) -> [Vec<u32>; 2] {
        [Which::Fifo, Which::Lru].map(|which| queues.oldest_first(which).collect())
    }

    #[test]
    fn the_second_request_moves_a_page_to_the_lru_queue() {
        let mut queues = Queues::new();
        (0..4).for_each(|frame| queues.touch(frame));
        queues.touch(1);
        queues.touch(2);
        assert_eq!(both(&queues), [vec![0, 3], vec![1, 2]]);
        queues.touch(1);
        assert_eq!(both(&queues), [vec![0, 3], vec![2, 1]]);
        assert_eq!(queues.victim(|_| true), Some(0), "FIFO before LRU");
        assert_eq!(queues.victim(|frame| frame != 0), Some(3), "pinned pages are skipped");
        queues.remove(0);
        queues.remove(3);
        assert_eq!((queues.victim(|_| true), queues.len()), (Some(2), 2));
        assert_eq!(queues.victim(|_| false), None);
        queues.touch(0);
        assert_eq!(queues.which(0), Which::Fifo, "an evicted page starts again: there is no ghost queue");
    }
}
