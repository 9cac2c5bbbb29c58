//! A device in memory whose clock runs 100 times as fast as real time. On this device, a scan moves to a newer view
//! every 20 ms instead of every few seconds. With a still faster clock, scans would mostly move to newer views.

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
