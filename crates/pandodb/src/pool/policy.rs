//! [`PoolPolicy`]: the names of the replacement policies of the pool.
//!
//! ```text
//!   PoolPolicy ──Pool::with_policy──▶ Replacement   Clock            hand.rs
//!                                                   TwoQueue         two_queue.rs
//!                                                   TwoQueueLocked   two_queue_locked.rs
//!                                                   Optimal          replacement.rs
//! ```
//!
//! Only [`PoolPolicy::Clock`] is meant for production. The other policies exist for comparisons ([decision
//! 0082](../../../../docs/decisions/0082-pool-policies.md)). A policy is chosen when a pool is created, and nothing on
//! disk depends on it.
//!
//! Invariant: each policy has one name, and [`PoolPolicy::from_str`] accepts exactly the names of [`PoolPolicy::ALL`].
//! Source: 000 §5.1.2 (2Q and optimal), 002 §3.6.1 (CLOCK).

use std::fmt::{Display, Formatter};
use std::str::FromStr;

use crate::base::Error;

/// The replacement policy of the pool: which block leaves the pool when another block needs room.
///
/// ```
/// use pandodb::PoolPolicy;
/// let policy: PoolPolicy = "2q".parse()?;
/// assert_eq!((policy, PoolPolicy::default()), (PoolPolicy::TwoQueue, PoolPolicy::Clock));
/// # Ok::<(), pandodb::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PoolPolicy {
    /// CLOCK, with one hand for each group of threads. A hit takes no lock.
    #[default]
    Clock,
    /// 2Q without its lock: a block that is hit while it is in the FIFO queue moves to the LRU queue when the next
    /// search for a victim meets it. A hit takes no lock; a miss takes the lock of the queues. A block with counted
    /// references is not evicted.
    TwoQueue,
    /// 2Q with one reader-writer lock around the table and the queues, as in 000 §5.1.2. Every lookup takes the lock,
    /// so threads slow each other down. Blocks that a reader holds are not evicted.
    TwoQueueLocked,
    /// Keeps every block and never evicts one. The capacity of the pool does not limit blocks, so the process may use
    /// as much memory as the store has data. For measurements only.
    Optimal,
}

impl PoolPolicy {
    /// Every policy, the default first.
    pub const ALL: [PoolPolicy; 4] =
        [PoolPolicy::Clock, PoolPolicy::TwoQueue, PoolPolicy::TwoQueueLocked, PoolPolicy::Optimal];

    /// The name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            PoolPolicy::Clock => "clock",
            PoolPolicy::TwoQueue => "2q",
            PoolPolicy::TwoQueueLocked => "2q-locked",
            PoolPolicy::Optimal => "optimal",
        }
    }
}

impl Display for PoolPolicy {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PoolPolicy {
    type Err = Error;

    fn from_str(name: &str) -> Result<PoolPolicy, Error> {
        let found = PoolPolicy::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| {
            let names = PoolPolicy::ALL.map(PoolPolicy::name).join(", ");
            Error::invalid(format!("no replacement policy of the pool is named `{name}`; use one of {names}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_is_found_by_its_name_only() {
        for policy in PoolPolicy::ALL {
            assert_eq!(policy.to_string().parse::<PoolPolicy>().unwrap(), policy);
        }
        let refused = "lru".parse::<PoolPolicy>().unwrap_err().to_string();
        assert!(refused.contains("`lru`") && refused.contains("clock, 2q, 2q-locked, optimal"), "{refused}");
    }
}
