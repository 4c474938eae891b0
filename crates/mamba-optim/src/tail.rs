//! The tail of a training step: everything between a finished gradient and updated weights.
//!
//! Order: overflow check on the scaled gradient → control clip → norm → skip or not → clip → AdamW → refresh of
//! derived values. The unscaling is folded into the passes that read the gradient (`g * inv_scale`), so nothing
//! but the control clip writes to the gradient arena.

use crate::adamw::{AdamWArenas, AdamWState, adamw_update};
use crate::clip::clip_control_spans;
use crate::error::{OptimError, ensure_len};
use crate::grads::{has_non_finite, sum_of_squares};
use crate::groups::{ControlSpans, ParamGroups};
use crate::norms::NormWindow;
use crate::scalars::StepScalars;
use crate::scaler::LossScaler;

/// What a step did. The norms are those of the unscaled gradient, after the control clip and before the global
/// clip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepOutcome {
    /// Weights, moments and step count moved.
    Stepped {
        /// Gradient norm before the clip.
        grad_norm: f64,
        /// Factor of the clip; exactly 1 where it did nothing.
        clip: f32,
    },
    /// The norm was above the skip threshold.
    SkippedSpike {
        /// The norm.
        grad_norm: f64,
        /// The threshold.
        threshold: f64,
    },
    /// The norm lies too far above those of the last steps.
    SkippedOutlier {
        /// The norm.
        grad_norm: f64,
        /// The threshold that the last norms gave.
        threshold: f64,
    },
    /// The gradient holds an Inf or NaN.
    SkippedNonFinite {
        /// The norm: NaN or +inf.
        grad_norm: f64,
    },
    /// The scaled gradient overflowed; the loss scale has been lowered.
    SkippedOverflow {
        /// The scale that was too large.
        loss_scale: f32,
    },
}

impl StepOutcome {
    /// Whether the weights moved.
    pub const fn stepped(&self) -> bool {
        matches!(self, Self::Stepped { .. })
    }

    /// The norm, `None` where an overflow left none to report.
    pub const fn grad_norm(&self) -> Option<f64> {
        match *self {
            Self::Stepped { grad_norm, .. }
            | Self::SkippedSpike { grad_norm, .. }
            | Self::SkippedOutlier { grad_norm, .. }
            | Self::SkippedNonFinite { grad_norm } => Some(grad_norm),
            Self::SkippedOverflow { .. } => None,
        }
    }
}

/// What a step reads and writes.
#[derive(Debug)]
pub struct TailArenas<'a> {
    /// Parameters.
    pub params: &'a mut [f32],
    /// Gradients times the loss scale. Written by the control clip alone.
    pub grads: &'a mut [f32],
    /// Moments and step count.
    pub state: &'a mut AdamWState,
    /// Norms of the last steps; takes that of a step that is taken.
    pub norms: &'a mut NormWindow,
}

/// Runs the tail on the CPU. `refresh` sees the new parameters after a real step, and is where values that
/// depend on them are recomputed; it is not called for a skipped step.
///
/// A skipped step changes no bit of parameters, moments, step count and norm window. The scaler counts a step as clean
/// unless the scaled gradient overflowed, so a spike or an outlier leaves its growth counter running.
///
/// # Errors
/// [`OptimError::Length`], [`OptimError::NoControlSpans`], [`OptimError::StaleScalars`] where the scalars were
/// not built from this state and scaler, [`OptimError::ScaleAtFloor`] for an overflow that no lower scale can
/// answer. Nothing changes then, the gradients included.
pub fn run_tail(
    arenas: TailArenas<'_>,
    groups: &ParamGroups,
    control: &ControlSpans,
    scaler: &mut LossScaler,
    scalars: &StepScalars,
    refresh: impl FnOnce(&[f32]),
) -> Result<StepOutcome, OptimError> {
    let TailArenas { params, grads, state, norms } = arenas;
    check_lengths(params, grads, state, groups, control)?;
    check_scalars(state, control, scaler, scalars)?;

    let controlled = scalars.control_clip_max != f64::INFINITY;
    // The control clip writes to the gradients, so an overflow, and with it an error, must be known before.
    if controlled && scalars.scaled() && has_non_finite(grads) {
        return overflow(scaler);
    }
    if controlled {
        clip_control_spans(grads, control, scalars)?;
    }
    let grad_norm = sum_of_squares(grads, scalars.inv_scale).sqrt();
    if !grad_norm.is_finite() && scalars.scaled() && has_non_finite(grads) {
        return overflow(scaler);
    }
    let outcome = if scalars.skips(grad_norm) {
        skipped(grad_norm, scalars)
    } else if let Some(threshold) = norms.threshold(scalars.skip_z_score).filter(|t| grad_norm > *t) {
        StepOutcome::SkippedOutlier { grad_norm, threshold }
    } else {
        let clip = scalars.clip(grad_norm);
        let AdamWState { m, v, .. } = state;
        adamw_update(AdamWArenas { params, grads, m, v }, groups, scalars, clip)?;
        state.step = scalars.step;
        norms.push(grad_norm);
        refresh(params);
        StepOutcome::Stepped { grad_norm, clip }
    };
    scaler.update(false)?;
    Ok(outcome)
}

fn overflow(scaler: &mut LossScaler) -> Result<StepOutcome, OptimError> {
    let loss_scale = scaler.scale();
    scaler.update(true)?;
    Ok(StepOutcome::SkippedOverflow { loss_scale })
}

fn skipped(grad_norm: f64, scalars: &StepScalars) -> StepOutcome {
    if grad_norm.is_finite() {
        StepOutcome::SkippedSpike { grad_norm, threshold: scalars.skip_above }
    } else {
        StepOutcome::SkippedNonFinite { grad_norm }
    }
}

fn check_lengths(
    params: &[f32],
    grads: &[f32],
    state: &AdamWState,
    groups: &ParamGroups,
    control: &ControlSpans,
) -> Result<(), OptimError> {
    let len = groups.arena_len();
    ensure_len("params", params.len(), len)?;
    ensure_len("grads", grads.len(), len)?;
    ensure_len("m", state.m.len(), len)?;
    ensure_len("v", state.v.len(), len)?;
    control.check_inside(len)
}

fn check_scalars(
    state: &AdamWState,
    control: &ControlSpans,
    scaler: &LossScaler,
    scalars: &StepScalars,
) -> Result<(), OptimError> {
    let stale = |name, got: f64, expected: f64| Err(OptimError::StaleScalars { name, got, expected });
    if state.step.checked_add(1) != Some(scalars.step) {
        return stale("step", scalars.step as f64, state.step as f64 + 1.0);
    }
    if scalars.loss_scale != scaler.scale() || scalars.scaled() != scaler.is_enabled() {
        return stale("loss_scale", f64::from(scalars.loss_scale), f64::from(scaler.scale()));
    }
    if scalars.control_clip_max != f64::INFINITY && control.is_empty() {
        return Err(OptimError::NoControlSpans { max_norm: scalars.control_clip_max });
    }
    Ok(())
}
