//! [`Unit`]: the leaves that a job rewrites as a whole.

use super::inner::Child;

/// A leaf of the old tree, with the leaves that continue the messages of its last key.
#[derive(Clone, Debug)]
pub struct Unit {
    /// The leaves. Empty if the tree is empty.
    pub leaves: Vec<Child>,
    /// The smallest key that belongs to the unit.
    pub from: Vec<u8>,
    /// The smallest key that belongs to the next unit; `None` for the last unit.
    pub to: Option<Vec<u8>>,
}

impl Unit {
    /// Whether `key`, which is not below the unit, belongs to a later unit.
    pub fn ends_before(&self, key: &[u8]) -> bool {
        self.to.as_ref().is_some_and(|to| key >= to.as_slice())
    }
}

/// Takes the first unit from leaves, which are given last first. `end` is the upper bound of the last leaf.
pub fn pop_unit(rest: &mut Vec<Child>, end: Option<&[u8]>) -> Option<Unit> {
    let first = rest.pop()?;
    let from = first.from.clone();
    let mut leaves = vec![first];
    while rest.last().is_some_and(|child| child.page.is_continued) {
        leaves.push(rest.pop().expect("looked at"));
    }
    let to = rest.last().map(|child| child.from.as_slice()).or(end);
    Some(Unit { leaves, from, to: to.map(<[u8]>::to_vec) })
}
