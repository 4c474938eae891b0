//! Capturing the fused step. Capture executes nothing and changes no state; a replay has the bits of the eager step.

use crate::contract::Core;
use crate::error::{Result, TrainerError};
use crate::step::{Objective, Plan, enqueue};

impl Core {
    /// Records the fused step, after one has run eagerly: by then nothing is allocated lazily any more.
    pub fn capture_graph(&mut self, objective: Objective) -> Result<()> {
        self.refuse_window("capture_graph")?;
        if !self.warm {
            return Err(TrainerError::GraphNeedsEagerStep);
        }
        self.engine.begin_capture()?;
        let recorded = enqueue(&mut *self.engine, &Plan::fused(objective));
        let ended = self.engine.end_capture(recorded.is_ok());
        recorded?;
        ended?;
        self.epoch += 1;
        Ok(())
    }

    /// Drops the recorded step; without one, does nothing.
    pub fn drop_graph(&mut self) {
        if self.engine.has_graph() {
            self.engine.drop_graph();
            self.epoch += 1;
        }
    }
}
