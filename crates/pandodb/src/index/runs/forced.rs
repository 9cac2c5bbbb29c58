//! [`Forced`]: a request to compact a range fully.

use crate::base::{KeyRange, OwnerId};

/// A request to compact a range fully.
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
}
