//! [`Queues`]: the FIFO queue and the LRU queue of 2Q, over the numbers of frames. Only a data structure: it knows no
//! blocks and no locks.
//!
//! ```text
//!   first access ──▶ │ 7 3 9 │ FIFO ──second access──▶ │ 4 1 8 │ LRU ◀──▶ each further access: to the newest end
//!                      └ evicted first                   └ evicted after the FIFO queue
//! ```
//!
//! 2Q keeps apart the blocks that were requested once while they were cached and those that were requested at least
//! twice. A scan requests each of its blocks once, so its blocks displace each other and not the hot blocks.
//!
//! Both queues are lists that are linked through one array, which is indexed by the number of the frame. So each
//! operation takes constant time. The source finds the list node of a page through a hash map; here the number of the
//! frame is its index.
//!
//! Invariants: a frame is in at most one queue; the stamp of a frame changes with every access, and 0 is the stamp of a
//! frame that is in no queue.
//!
//! Source: 000 §5.1.2. There is no queue of the keys of evicted blocks.

/// The end of a list.
const NONE: u32 = u32::MAX;

/// One of the two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// Blocks that were requested once since they were cached.
    Fifo,
    /// Blocks that were requested at least twice since they were cached.
    Lru,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    older: u32,
    newer: u32,
    queue: Option<Queue>,
    stamp: u64,
}

const FREE: Node = Node { older: NONE, newer: NONE, queue: None, stamp: 0 };
const _: () = assert!(size_of::<Node>() <= 24, "the memory of the queues for each frame is small");

#[derive(Clone, Copy, Debug)]
struct List {
    oldest: u32,
    newest: u32,
    len: usize,
}

/// The two queues.
#[derive(Debug)]
pub(super) struct Queues {
    /// Indexed by the number of the frame.
    nodes: Vec<Node>,
    /// Indexed by [`Queue`].
    lists: [List; 2],
    /// The number of accesses so far.
    clock: u64,
}

fn numbered(number: u32) -> Option<u32> {
    (number != NONE).then_some(number)
}

impl Default for Queues {
    fn default() -> Queues {
        Queues { nodes: Vec::new(), lists: [List { oldest: NONE, newest: NONE, len: 0 }; 2], clock: 0 }
    }
}

impl Queues {
    /// The first access to a frame: puts the frame at the newest end of the FIFO queue.
    /// REQUIRES: the frame is in no queue.
    pub(super) fn enter(&mut self, number: u32) {
        assert!(number != NONE, "the number marks the end of a list");
        if self.nodes.len() <= number as usize {
            self.nodes.resize(number as usize + 1, FREE);
        }
        self.append(number, Queue::Fifo);
    }

    /// A further access: moves the frame to the newest end of the LRU queue.
    /// REQUIRES: the frame is in a queue.
    pub(super) fn access(&mut self, number: u32) {
        self.remove(number);
        self.append(number, Queue::Lru);
    }

    fn append(&mut self, number: u32, queue: Queue) {
        self.clock += 1;
        let stamp = self.clock;
        let list = &mut self.lists[queue as usize];
        let node = &mut self.nodes[number as usize];
        assert!(node.queue.is_none(), "frame {number} is in one queue");
        *node = Node { older: list.newest, newer: NONE, queue: Some(queue), stamp };
        match numbered(list.newest) {
            Some(before) => self.nodes[before as usize].newer = number,
            None => list.oldest = number,
        }
        list.newest = number;
        list.len += 1;
    }

    /// Takes a frame out of its queue.
    /// REQUIRES: the frame is in a queue.
    pub(super) fn remove(&mut self, number: u32) {
        let node = std::mem::replace(&mut self.nodes[number as usize], FREE);
        let list = &mut self.lists[node.queue.expect("the frame is in a queue") as usize];
        match numbered(node.older) {
            Some(older) => self.nodes[older as usize].newer = node.newer,
            None => list.oldest = node.newer,
        }
        match numbered(node.newer) {
            Some(newer) => self.nodes[newer as usize].older = node.older,
            None => list.newest = node.older,
        }
        assert!(list.len > 0, "a queue that holds a frame is not empty");
        list.len -= 1;
        debug_assert_eq!(list.len == 0, list.oldest == NONE, "an empty queue has no oldest frame");
    }

    /// The number of frames of a queue.
    pub(super) fn len(&self, queue: Queue) -> usize {
        self.lists[queue as usize].len
    }

    /// The oldest frame of a queue.
    pub(super) fn oldest(&self, queue: Queue) -> Option<u32> {
        numbered(self.lists[queue as usize].oldest)
    }

    /// The next newer frame of the same queue.
    /// REQUIRES: the frame is in a queue.
    pub(super) fn newer(&self, number: u32) -> Option<u32> {
        let node = &self.nodes[number as usize];
        debug_assert!(node.queue.is_some(), "frame {number} is in a queue");
        numbered(node.newer)
    }

    /// The frames in the order in which 2Q evicts them: the FIFO queue before the LRU queue, in each the oldest first.
    pub(super) fn victims(&self) -> impl Iterator<Item = u32> + '_ {
        let from = |queue| std::iter::successors(self.oldest(queue), |number| self.newer(*number));
        from(Queue::Fifo).chain(from(Queue::Lru))
    }

    /// A number that changes with each access to the frame, and when the frame leaves its queue.
    pub(super) fn stamp(&self, number: u32) -> u64 {
        self.nodes.get(number as usize).map_or(0, |node| node.stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_victims_is_fifo_then_least_recently_used() {
        let mut queues = Queues::default();
        let order = |queues: &Queues| queues.victims().collect::<Vec<_>>();
        [3, 0, 5, 1].into_iter().for_each(|number| queues.enter(number));
        assert_eq!(order(&queues), [3, 0, 5, 1]);
        queues.access(0);
        queues.access(3);
        assert_eq!(order(&queues), [5, 1, 0, 3], "frames that were accessed twice come last");
        queues.access(0);
        assert_eq!(order(&queues), [5, 1, 3, 0], "a third access makes a frame the newest");
        queues.enter(9);
        assert_eq!(order(&queues), [5, 1, 9, 3, 0], "a new frame is a victim before all frames of the LRU queue");
        queues.remove(1);
        queues.remove(0);
        assert_eq!(order(&queues), [5, 9, 3]);
        assert_eq!((queues.len(Queue::Fifo), queues.len(Queue::Lru)), (2, 1));
    }

    #[test]
    fn queues_agree_with_lists_of_numbers() {
        let (mut queues, mut fifo, mut lru) = (Queues::default(), Vec::new(), Vec::new());
        let mut random = 1u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = (random >> 33) as u32 % 40;
            let cached = fifo.contains(&number) || lru.contains(&number);
            let before = queues.stamp(number);
            assert_eq!(before != 0, cached);
            fifo.retain(|other| *other != number);
            lru.retain(|other| *other != number);
            match (cached, (random >> 50) % 3) {
                (false, _) => {
                    queues.enter(number);
                    fifo.push(number);
                }
                (true, 0) => queues.remove(number),
                (true, _) => {
                    queues.access(number);
                    lru.push(number);
                }
            }
            assert_ne!(queues.stamp(number), before, "each step changes the stamp");
            assert!(queues.victims().eq(fifo.iter().chain(&lru).copied()));
        }
    }

    #[test]
    #[should_panic(expected = "in one queue")]
    fn a_frame_does_not_enter_twice() {
        let mut queues = Queues::default();
        queues.enter(2);
        queues.enter(2);
    }
}
