//! Thinning: reduces a series of many points to the points that an image can show.
//!
//! The range of x is divided into columns. In each column, the first, the lowest, the highest and the last point are
//! kept, in their order. A stall may affect only one of thousands of points. This point is kept, because it is the
//! lowest or the highest point of its column.

/// Keeps about four points for each of `columns` columns, or all points of a short series. Of several adjacent points
/// that are not finite, one is kept, so that it breaks the line.
pub fn thin(points: &[(f64, f64)], columns: usize) -> Vec<(f64, f64)> {
    assert!(columns > 0, "an image has columns");
    if points.len() <= 4 * columns {
        return points.to_vec();
    }
    let finite = || points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
    let (low, high) = finite().fold((f64::MAX, f64::MIN), |(low, high), &(x, _)| (low.min(x), high.max(x)));
    let column_of = |x: f64| {
        let share = if high > low { (x - low) / (high - low) } else { 0.0 };
        ((share * columns as f64) as usize).min(columns - 1)
    };
    let mut kept = Vec::new();
    let mut run: Vec<usize> = Vec::new();
    for (i, &(x, y)) in points.iter().enumerate() {
        if !(x.is_finite() && y.is_finite()) {
            keep_extremes(points, &mut run, &mut kept);
            if kept.last().is_some_and(|last: &(f64, f64)| last.1.is_finite()) {
                kept.push((x, f64::NAN));
            }
            continue;
        }
        if run.first().is_some_and(|&first| column_of(points[first].0) != column_of(x)) {
            keep_extremes(points, &mut run, &mut kept);
        }
        run.push(i);
    }
    keep_extremes(points, &mut run, &mut kept);
    kept
}

/// Moves the kept points of one column from `run` to `kept`.
fn keep_extremes(points: &[(f64, f64)], run: &mut Vec<usize>, kept: &mut Vec<(f64, f64)>) {
    let by_y = |a: &&usize, b: &&usize| points[**a].1.total_cmp(&points[**b].1);
    let (Some(&first), Some(&last)) = (run.first(), run.last()) else { return };
    let lowest = *run.iter().min_by(by_y).expect("not empty");
    let highest = *run.iter().max_by(by_y).expect("not empty");
    let mut stay = vec![first, lowest, highest, last];
    stay.sort_unstable();
    stay.dedup();
    kept.extend(stay.into_iter().map(|i| points[i]));
    run.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_among_ten_thousand_points_is_kept() {
        let mut points: Vec<(f64, f64)> = (0..10_000).map(|i| (f64::from(i), 100.0 + f64::from(i % 7))).collect();
        points[4_321].1 = 0.0;
        points[7_777].1 = 9_999.0;
        let few = thin(&points, 300);
        assert!(few.len() <= 1200, "{}", few.len());
        assert!(few.contains(&(4_321.0, 0.0)) && few.contains(&(7_777.0, 9_999.0)));
        assert_eq!((few[0], few[few.len() - 1]), (points[0], points[9_999]));
        assert!(few.is_sorted_by(|a, b| a.0 < b.0), "in order, none twice");
    }

    #[test]
    fn gaps_and_degenerate_series_are_accepted() {
        assert_eq!(thin(&[], 10), []);
        assert_eq!(thin(&[(1.0, f64::NAN)], 10).len(), 1);
        assert!(thin(&vec![(1.0, 2.0); 1000], 10).len() <= 4);
        let holes: Vec<(f64, f64)> =
            (0..1000).map(|i| (f64::from(i), if (400..600).contains(&i) { f64::NAN } else { 1.0 })).collect();
        assert_eq!(thin(&holes, 10).iter().filter(|point| point.1.is_nan()).count(), 1);
        assert!(thin(&vec![(f64::NAN, f64::NAN); 1000], 10).is_empty());
    }
}
