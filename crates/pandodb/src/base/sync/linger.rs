//! Waiting for another thread that is about to be ready: a little while on the processor, before one sleeps.

/// Rounds on the processor: about a microsecond, as long as another thread needs to apply a small commit.
const SPINS: u32 = 64;
/// Rounds in which the processor is offered to others: whoever is waited for may have been put aside.
const YIELDS: u32 = 8;

/// Waits a moment. Whether it is worth to look once more; if not, what is waited for takes long, and the caller sleeps.
/// `round` counts and starts at 0.
#[inline]
pub fn linger(round: &mut u32) -> bool {
    *round += 1;
    if *round <= SPINS {
        std::hint::spin_loop();
    } else if *round <= SPINS + YIELDS {
        std::thread::yield_now();
    } else {
        return false;
    }
    true
}
