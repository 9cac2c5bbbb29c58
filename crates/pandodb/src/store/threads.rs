//! The background threads of a store. The threads hold only weak references to the engine. They end when the engine is
//! closed, for example because the last handle was dropped.

use std::sync::{Arc, Weak};

use super::engine::Engine;
use crate::base::{Error, Result};
use crate::sched::{BACKGROUND_STEP, Scheduler, Turn};

/// The main function of a background thread.
type Body = Box<dyn FnOnce(&Scheduler, Weak<Engine>) + Send>;

/// Starts the threads: one for checkpoints, and the number of workers that the settings specify.
pub(super) fn start(engine: &Arc<Engine>) -> Result<()> {
    if engine.config.read_only || engine.config.background_threads == 0 {
        return Ok(());
    }
    let spawn = |name: &str, body: Body| {
        let (scheduler, weak) = (engine.background.scheduler.clone(), Arc::downgrade(engine));
        let thread = engine.device.spawn(name, Box::new(move || body(&scheduler, weak)));
        thread
            .map(|thread| engine.background.add(thread))
            .map_err(|e| Error::io("spawn", "background thread", None, &e))
    };
    spawn(
        "pando-checkpoint",
        Box::new(|scheduler, weak| {
            scheduler.run_unmetered(&|| {
                weak.upgrade().map_or(Turn::Stuck, |engine| engine.guarded(&|it| it.checkpoint_turn(0)))
            });
        }),
    )?;
    assert!(engine.config.background_threads <= 64, "settings were checked");
    for i in 0..engine.config.background_threads {
        let device = engine.device.clone();
        spawn(
            &format!("pando-{i}"),
            Box::new(move |scheduler, weak| {
                let budget = scheduler.step(BACKGROUND_STEP);
                let turn = || weak.upgrade().map_or(Turn::Stuck, |engine| engine.guarded(&|it| it.turn(budget)));
                scheduler.run(&turn, &|| device.now());
            }),
        )?;
    }
    Ok(())
}
