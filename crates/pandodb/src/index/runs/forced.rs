//! [`Forced`]: a request to compact a range.

use crate::base::{KeyRange, OwnerId};

/// A request to compact a range.
#[derive(Clone, Debug)]
pub struct Forced {
    /// The key range of the request.
    pub range: KeyRange,
    /// The request rewrites runs with a smaller identity than this limit. The outputs have larger identities. So they
    /// are not rewritten again, even if they still hold old versions that snapshots need.
    pub before: OwnerId,
    /// Whether the request only makes scans faster. Such a request is forgotten if the disk is almost full. The
    /// requests of callers remain.
    pub optional: bool,
    /// Whether only the newer runs of each leaf are compacted with each other, and the oldest run of the leaf stays as it
    /// is, unless a compaction of the whole leaf is due. `cola` ignores this field.
    pub keeps_oldest: bool,
}
