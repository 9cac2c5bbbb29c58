//! [`Shape`]: the sizes of a Bε-tree, computed from its options. A pure function.

/// The bytes of a row for which ε is defined. Rows of other sizes change how many of them fit, but not how the bytes of a
/// node are divided.
const ROW: u64 = 128;
/// The fewest children that an inner page may have at most.
const FEWEST_CHILDREN: u64 = 4;

/// The sizes of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// The most children of a page with a buffer: B^ε.
    pub(super) children: u64,
    /// The bytes of its buffer.
    pub(super) buffer_bytes: u64,
    /// The most leaves of a leaf node; 1 if a leaf node is one leaf.
    pub(super) leaves: u64,
}

impl Shape {
    /// The sizes for nodes of `node` bytes, leaves of `leaf` bytes, and ε in percent.
    pub(super) fn of(node: u64, leaf: u64, epsilon: u64) -> Shape {
        let slots = node / ROW;
        let children = power(slots, epsilon).clamp(FEWEST_CHILDREN, slots.max(FEWEST_CHILDREN));
        let buffer_bytes = if epsilon >= 100 { 0 } else { node - node * children.min(slots) / slots };
        Shape { children, buffer_bytes, leaves: (node / leaf).max(1) }
    }
}

/// `base` to the power of `percent` / 100, rounded.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small numbers"
)]
fn power(base: u64, percent: u64) -> u64 {
    (base as f64).powf(percent as f64 / 100.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epsilon_divides_a_node_between_children_and_buffer() {
        let of = |epsilon| Shape::of(512 << 10, 8 << 10, epsilon);
        // 4096 slots: 4096^0.5 = 64 and 4096^0.25 = 8.
        assert_eq!(of(50), Shape { children: 64, buffer_bytes: (512 << 10) - 64 * 128, leaves: 64 });
        assert_eq!(of(25), Shape { children: 8, buffer_bytes: (512 << 10) - 8 * 128, leaves: 64 });
        assert_eq!(of(0).children, FEWEST_CHILDREN);
        assert_eq!(of(100), Shape { children: 4096, buffer_bytes: 0, leaves: 64 });
        // The source's pages: 16 KiB, ε = 0.8 (000 §6.4).
        assert_eq!(Shape::of(16 << 10, 16 << 10, 80), Shape { children: 49, buffer_bytes: 10112, leaves: 1 });
    }

    #[test]
    fn a_larger_epsilon_never_makes_fewer_children_or_a_larger_buffer() {
        for node in [4 << 10, 16 << 10, 64 << 10, 1 << 20, 4 << 20] {
            let shapes: Vec<Shape> = (0..=100).map(|epsilon| Shape::of(node, 4 << 10, epsilon)).collect();
            assert!(shapes.is_sorted_by(|a, b| a.children <= b.children && a.buffer_bytes >= b.buffer_bytes), "{node}");
            assert_eq!(shapes[100].buffer_bytes, 0);
        }
    }
}
