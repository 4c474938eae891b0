//! The order of a step, once. Eager calls run it, a capture records it, a replay repeats it.

use crate::engine::{Engine, Op};
use crate::error::Result;

/// Where the gradient comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objective {
    /// The caller's gradient of the temporal output.
    Upstream,
    /// The language model's own loss.
    Loss,
}

/// Which parts of a step one call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Starts a window: the arena is zeroed.
    pub opens: bool,
    /// Runs the forward pass.
    pub forward: bool,
    /// Runs this backward pass.
    pub backward: Option<Objective>,
    /// Ends the window: the optimizer's tail runs.
    pub closes: bool,
}

impl Plan {
    /// The whole step, as `step` runs it and a graph holds it.
    pub fn fused(objective: Objective) -> Self {
        Self { opens: true, forward: true, backward: Some(objective), closes: true }
    }

    /// The forward half of a split step.
    pub fn forward() -> Self {
        Self { opens: false, forward: true, backward: None, closes: false }
    }

    /// The tail alone, for an open window.
    pub fn close() -> Self {
        Self { opens: false, forward: false, backward: None, closes: true }
    }
}

/// zero → forward → \[loss\] → backward → tail (unscale, overflow, control clip, norm, clip, skip, AdamW, refresh) →
/// metrics.
pub(crate) fn enqueue(engine: &mut dyn Engine, plan: &Plan) -> Result<()> {
    if plan.opens {
        engine.enqueue(Op::ZeroGrads)?;
    }
    if plan.forward {
        engine.enqueue(Op::Forward)?;
    }
    match plan.backward {
        Some(Objective::Upstream) => engine.enqueue(Op::Backward)?,
        Some(Objective::Loss) => engine.enqueue(Op::LossBackward)?,
        None => {}
    }
    if plan.closes {
        engine.enqueue(Op::Tail)?;
        engine.enqueue(Op::Publish)?;
    }
    Ok(())
}
