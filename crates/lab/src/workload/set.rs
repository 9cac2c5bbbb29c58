//! [`DataSet`]: the records that a workload works on. Workloads of one set share a store; a change of the set starts a
//! new store.
//!
//! Each set has about as many bytes as the main set of the plan, so that the same memory budget is the same share of the
//! data. The number of records of a set follows from this rule ([`DataSet::records`]).

use crate::record::Shape;

/// The number of time series.
pub const SERIES: u64 = 1000;
/// The points of a series that the workload `timeseries-hour` reads: one hour, with a point each 10 seconds.
pub const HOUR: u64 = 360;
/// The average number of rows of a group of the set [`DataSet::Indexed`], which is also the most that a lookup reads.
pub const GROUP: u64 = 10;
/// Bytes of the key and the value of an index entry.
pub const INDEX_ENTRY: (usize, usize) = (36, 8);
/// Bytes of the value of a change record.
pub const CHANGE: usize = 16;
/// The least number of indexed rows. Each of at most 255 threads has rows that only this thread updates.
const LEAST_INDEXED: u64 = 255;
/// Bytes of keys and values of the set [`DataSet::Indexed`] and of the keys of [`DataSet::Mixed`].
const ROW: (usize, usize) = (24, 100);
const BIG_KEY: (usize, usize) = (24, 256);

/// A set of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataSet {
    /// Rows with the lengths of keys and values of the plan.
    #[default]
    Main,
    /// Points of 1,000 time series, with keys and values of 16 bytes.
    Series,
    /// Rows with keys of 24 to 256 bytes and values of 4 KiB.
    Big4K,
    /// Rows with keys of 24 to 256 bytes and values of 16 KiB.
    Big16K,
    /// Rows of 24 + 100 bytes with an index entry and a change record each.
    Indexed,
    /// Rows with values of 16 bytes to 8 KiB.
    Mixed,
}

impl DataSet {
    /// The shape of the records. `key_len`, `value_len` and `zeros` are those of the plan; only the main set uses the
    /// lengths.
    pub fn shape(self, key_len: usize, value_len: usize, zeros: f64) -> Shape {
        let shape = match self {
            DataSet::Main => Shape::new(key_len, value_len),
            DataSet::Series => Shape::new(16, 16),
            DataSet::Big4K => Shape::new(BIG_KEY.0, 4 << 10).with_keys_up_to(BIG_KEY.1),
            DataSet::Big16K => Shape::new(BIG_KEY.0, 16 << 10).with_keys_up_to(BIG_KEY.1),
            DataSet::Indexed => Shape::new(ROW.0, ROW.1),
            DataSet::Mixed => return Shape::new(ROW.0, 0).with_lognormal_values(),
        };
        shape.with_zeros(zeros)
    }

    /// The mean number of bytes of a record: a row with all that belongs to it.
    pub fn record_bytes(self, shape: &Shape) -> u64 {
        let more = if self == DataSet::Indexed { INDEX_ENTRY.0 + INDEX_ENTRY.1 + ROW.0 + CHANGE } else { 0 };
        shape.record_bytes() + more as u64
    }

    /// The number of records with about as many bytes as `records` rows of `main_bytes` bytes each.
    pub fn records(self, shape: &Shape, records: u64, main_bytes: u64) -> u64 {
        let as_many = || (u128::from(records) * u128::from(main_bytes) / u128::from(self.record_bytes(shape))) as u64;
        match self {
            DataSet::Main => records,
            DataSet::Indexed => as_many().max(LEAST_INDEXED),
            _ => as_many().max(1),
        }
    }
}

/// The number of points that a series has if `points` points were put to all series in turn.
pub fn points_of(series: u64, points: u64) -> u64 {
    points / SERIES + u64::from(series < points % SERIES)
}

/// The number of groups of `rows` indexed rows.
pub fn groups(rows: u64) -> u64 {
    rows.div_ceil(GROUP).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_have_as_many_bytes_as_the_main_set() {
        let sets = [DataSet::Series, DataSet::Big4K, DataSet::Big16K, DataSet::Indexed, DataSet::Mixed];
        for set in sets {
            let shape = set.shape(24, 100, 0.0);
            let bytes = set.records(&shape, 10_000_000, 124) * set.record_bytes(&shape);
            assert!(bytes.abs_diff(1_240_000_000) < 20_000, "{set:?}: {bytes}");
        }
        assert_eq!(DataSet::Series.records(&DataSet::Series.shape(24, 100, 0.0), 10_000_000, 124), 38_750_000);
        assert_eq!(DataSet::Big16K.records(&DataSet::Big16K.shape(24, 100, 0.0), 1, 124), 1);
        assert_eq!(DataSet::Main.records(&DataSet::Main.shape(24, 100, 0.0), 7, 124), 7);
    }

    #[test]
    fn points_are_put_in_turn() {
        assert_eq!((points_of(0, 2500), points_of(499, 2500), points_of(500, 2500)), (3, 3, 2));
        assert_eq!((0..SERIES).map(|series| points_of(series, 123_456)).sum::<u64>(), 123_456);
    }
}
