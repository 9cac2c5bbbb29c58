//! A device in memory whose clock runs 100 times as fast. A scan then moves to a newer view every 20 ms, which
//! otherwise takes seconds. With a faster clock, scans would do little else.

use std::sync::Arc;
use std::time::Duration;

use pandodb::device::wrapper::DeviceWrapper;
use pandodb::device::{Device, MemDevice};

/// Speed of the clock relative to real time.
const HASTE: u32 = 100;

/// The device.
#[derive(Debug)]
pub(super) struct HastyDevice(pub Arc<MemDevice>);

impl DeviceWrapper for HastyDevice {
    fn inner(&self) -> &dyn Device {
        &*self.0
    }

    fn now(&self) -> Duration {
        self.0.now() * HASTE
    }

    fn sleep(&self, time: Duration) {
        self.0.sleep(time / HASTE);
    }
}
