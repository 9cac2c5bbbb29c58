//! The parts of relief that all indexes over runs share. Relief is the background work on a full disk.
//!
//! ```text
//!   room ──▶ one compaction whose output fits ──▶ done
//!    ▲                 │ the disk has less space than that
//!    └──── half ◀──────┘
//! ```
//!
//! An index chooses the compaction; see the module `relieve` of the index.

use crate::base::{Error, PAGE, Result};
use crate::index::{Progress, Room};

/// A compaction needs up to 1/16 more space than its inputs, for filters, inner blocks and partly filled pages.
const OVERHEAD: u64 = 16;
/// Minimum number of bytes that a compaction needs, even if its inputs are small.
const LEAST_BYTES: u64 = 4 * PAGE as u64;
/// If relief is not urgent, a part of the key space is compacted because of its garbage only if the garbage is at least
/// 1/WORTH of this part.
pub const WORTH: u64 = 16;

const _: () = assert!(OVERHEAD > 1 && WORTH > 1);

/// Whether a compaction of `bytes` fits in `room`.
pub fn fits(bytes: u64, room: u64) -> bool {
    bytes + bytes / OVERHEAD + LEAST_BYTES <= room
}

/// The maximum number of input bytes of a compaction that fits into `room`.
pub fn fitting(room: u64) -> u64 {
    let room = room.saturating_sub(LEAST_BYTES);
    let bytes = room - room / OVERHEAD;
    debug_assert!(bytes == 0 || fits(bytes, room + LEAST_BYTES), "the compaction of {bytes} bytes fits");
    bytes
}

/// Does one compaction within `room`. If the disk has less free space than `room`, calls `before_retry` and retries
/// with half the room, down to the space that deletes need.
///
/// # Errors
/// The errors of `attempt`; [`Error::DiskFull`] is returned only when the room cannot be halved any more.
pub fn in_shrinking_room(
    mut room: Room,
    attempt: impl Fn(Room) -> Result<Progress>,
    before_retry: impl Fn(),
) -> Result<Progress> {
    loop {
        match attempt(room) {
            Err(Error::DiskFull { .. }) if room.bytes > room.spare => {
                before_retry();
                let before = room.bytes;
                room.bytes = (room.bytes / 2).max(room.spare);
                assert!(room.bytes < before, "each attempt has less room");
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn what_fitting_returns_fits() {
        for room in [0, LEAST_BYTES, LEAST_BYTES + 1, 100 << 10, (1 << 30) + 7] {
            let bytes = fitting(room);
            assert!(bytes == 0 || fits(bytes, room), "{bytes} in {room}");
            assert!(!fits(bytes + bytes / 64 + 2, room) || room < LEAST_BYTES, "{bytes} in {room}");
        }
    }

    #[test]
    fn a_full_disk_halves_the_room_down_to_the_spare_space() {
        let tried = RefCell::new(Vec::new());
        let room = Room { bytes: 1000, spare: 300, urgent: false };
        let full = |room: Room| {
            tried.borrow_mut().push(room.bytes);
            Err(Error::DiskFull { op: "compaction" })
        };
        let result = in_shrinking_room(room, full, || tried.borrow_mut().push(0));
        assert!(matches!(result, Err(Error::DiskFull { .. })));
        assert_eq!(*tried.borrow(), [1000, 0, 500, 0, 300]);
    }
}
