//! Crashes during recovery, and during the recovery from such a crash.
//!
//! After a crash during recovery, the store may have any state of the window of the original crash. After a crash that
//! follows a completed recovery, the store must have exactly the state that the recovered store returned.

use std::ops::RangeInclusive;

use pandodb::device::sim::{CrashChoice, CrashPlan, SimDevice, SimHistory, SimImage};

use super::enumerate::{Enumerator, describe};
use crate::drive::{calmly, contents};

/// The maximum depth of nested recoveries.
const DEPTH: u64 = 3;
/// If this is n: after every nth crash during a recovery, the recovery from that crash is crashed too.
const DEEPER_EVERY: u64 = 8;

/// A crash during a recovery.
struct Place {
    image: SimImage,
    /// Whether the recovery was complete.
    done: bool,
    position: usize,
    choice: CrashChoice,
}

impl Enumerator<'_> {
    /// Crashes a recorded recovery at some points. The recovery has the given nesting depth; `shown` is the digest of
    /// the contents that the recovered store returned.
    pub fn crash_recovery(
        &mut self,
        history: &SimHistory,
        shown: u64,
        allowed: &RangeInclusive<usize>,
        depth: u64,
    ) -> Result<(), String> {
        for place in self.places(history) {
            self.recover(&place, shown, allowed, depth).map_err(|e| {
                let before = &history.ops()[..place.position];
                format!("recovery {depth}, op {}: {:?} of {}: {e}", place.position, place.choice, describe(before))
            })?;
        }
        Ok(())
    }

    /// Draws random points of a recovery, and a crash choice for each point. Keeps the crashes that leave an image that
    /// has not occurred before.
    fn places(&mut self, history: &SimHistory) -> Vec<Place> {
        let plan =
            CrashPlan { exhaustive: 3, pairs: false, subsets: 2, tears: 1, rot: true, seed: self.rng.next_u64() };
        let all = history.ops().len();
        let mut drawn: Vec<usize> =
            (0..self.effort.recovery_images).map(|_| self.rng.below(all as u64) as usize).collect();
        drawn.sort_unstable();
        let mut places = Vec::new();
        let mut cursor = history.walk();
        // Before the first write, the image equals the image of the original crash.
        self.recovery_seen.insert(cursor.cached_image().hash());
        while cursor.advance().is_some() {
            for _ in drawn.iter().filter(|position| **position + 1 == cursor.position()) {
                let choices: Vec<CrashChoice> = plan.choices(&cursor.pending()).collect();
                let choice = choices[self.rng.below(choices.len() as u64) as usize].clone();
                let image = cursor.image(&choice);
                if self.recovery_seen.insert(image.hash()) {
                    let done = cursor.last_mark().is_some();
                    places.push(Place { image, done, position: cursor.position(), choice });
                }
            }
        }
        places
    }

    fn recover(
        &mut self,
        place: &Place,
        shown: u64,
        allowed: &RangeInclusive<usize>,
        depth: u64,
    ) -> Result<(), String> {
        self.tally.count("crashes inside recovery", 1);
        self.tally.digest = self.tally.digest.wrapping_add(place.image.hash());
        let deeper = depth < DEPTH && self.tally.counted("crashes inside recovery").is_multiple_of(DEEPER_EVERY);
        let device = SimDevice::from_image(&place.image, depth);
        if deeper {
            device.record();
        }
        let state = calmly(|| {
            let store = self.sizes.open(device.clone())?;
            device.mark(0);
            contents(&store)
        })?;
        let digest = state.map_err(|e| format!("it does not open: {e}"))?.digest();
        if place.done && digest != shown {
            return Err("its contents differ from those that the completed recovery returned".into());
        }
        self.judge(digest, allowed)?;
        if deeper {
            self.tally.count("recoveries crashed anew", 1);
            self.crash_recovery(&device.history(), digest, allowed, depth + 1)?;
        }
        Ok(())
    }
}
