use crate::elem::CppType;
use bytemuck::{Pod, Zeroable};

/// Flag of [`TailInputs`]: a step whose norm is above `skip_above`, or NaN, is skipped.
pub const GUARD: u32 = 1;
/// Flag of [`TailInputs`]: a loss scaler is on, so an Inf or NaN in the scaled gradient is an overflow.
pub const SCALED: u32 = 2;

/// What a closing step reads: uploaded before each step, so that a captured graph follows every change.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct TailInputs {
    /// β₁ as given.
    pub beta1_exact: f64,
    /// β₂ as given.
    pub beta2_exact: f64,
    /// Largest global norm; +inf is off.
    pub clip_max: f64,
    /// Largest norm over the control spans; +inf is off.
    pub control_clip_max: f64,
    /// Largest norm that is not skipped.
    pub skip_above: f64,
    /// Standard deviations above the mean of the last norms that make an outlier; +inf is off.
    pub skip_z_score: f64,
    /// Smallest standard deviation of the last norms, as a share of their mean.
    pub deviation_floor: f64,
    /// Factor of the gradient beside the loss scale: 1/Σ weight of a window, 1/world size.
    pub grad_factor: f64,
    /// Factor of the loss scale after `growth_interval` clean steps.
    pub growth_factor: f64,
    /// Factor of the loss scale after an overflow.
    pub backoff_factor: f64,
    /// Learning rate.
    pub lr: f32,
    /// 1 − lr · weight decay.
    pub decay: f32,
    /// β₁.
    pub beta1: f32,
    /// 1 − β₁, rounded after the difference.
    pub one_minus_beta1: f32,
    /// β₂.
    pub beta2: f32,
    /// 1 − β₂, rounded after the difference.
    pub one_minus_beta2: f32,
    /// Term added to the denominator.
    pub eps: f32,
    /// Smallest loss scale; 0 is no bound.
    pub min_scale: f32,
    /// Largest loss scale; +inf is no bound.
    pub max_scale: f32,
    /// Clean steps in a row until the scale grows.
    pub growth_interval: u32,
    /// Norms needed before anything is an outlier.
    pub min_norms: u32,
    /// [`GUARD`], [`SCALED`].
    pub flags: u32,
}

impl CppType for TailInputs {
    const CPP: &'static str = "TailInputs";
}

/// What the device keeps from step to step and decides in each.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct TailState {
    /// Applied updates.
    pub step: u64,
    /// Closed windows.
    pub windows: u64,
    /// Windows skipped because of a spike.
    pub spikes: u64,
    /// Windows skipped because their norm was an outlier among the last ones.
    pub outliers: u64,
    /// Windows skipped because of a non-finite norm.
    pub non_finite: u64,
    /// Windows skipped because the loss scale was too large.
    pub overflows: u64,
    /// Norm of the last window's gradient: unscaled, after the control clip, before the global one.
    pub grad_norm: f64,
    /// Norm over the control spans before their clip; NaN where that is off.
    pub control_norm: f64,
    /// Norm above which the last window was an outlier; +inf where there was none.
    pub outlier_above: f64,
    /// Loss scale of the next window; 1 without a scaler.
    pub scale: f32,
    /// Loss scale of the last window.
    pub used_scale: f32,
    /// Factor that turned the arena into the gradient.
    pub inv_scale: f32,
    /// Factor of the global clip.
    pub clip: f32,
    /// 1 / (1 − β₁^step).
    pub bc1: f32,
    /// 1 / (1 − β₂^step).
    pub bc2: f32,
    /// Clean steps since the scale last moved.
    pub growth_tracker: u32,
    /// Spikes, outliers and non-finite norms in a row.
    pub consecutive: u32,
    /// A [`TailOutcome`], see [`TailState::outcome`].
    pub outcome: u32,
    /// 1 where the last window's update was applied.
    pub applied: u32,
    /// Norms in the ring of [`Decide`](super::Decide).
    pub norms: u32,
    /// Where its oldest norm lies.
    pub oldest_norm: u32,
}

impl CppType for TailState {
    const CPP: &'static str = "TailState";
}

/// What became of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailOutcome {
    /// No window has been closed.
    None,
    /// Weights, moments and step count moved.
    Applied,
    /// The norm was above the threshold.
    Spike,
    /// The norm was not finite.
    NonFinite,
    /// The scaled gradient overflowed; the loss scale has been lowered.
    Overflow,
    /// It overflowed, and the loss scale cannot go lower.
    OverflowAtFloor,
    /// The norm lies too far above the last ones.
    Outlier,
}

impl TailState {
    /// The state before the first step.
    pub fn new(scale: f32) -> Self {
        Self { scale, used_scale: scale, ..Self::zeroed() }
    }

    /// What became of the last window.
    pub fn outcome(&self) -> TailOutcome {
        match self.outcome {
            1 => TailOutcome::Applied,
            2 => TailOutcome::Spike,
            3 => TailOutcome::NonFinite,
            4 => TailOutcome::Overflow,
            5 => TailOutcome::OverflowAtFloor,
            6 => TailOutcome::Outlier,
            _ => TailOutcome::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    /// The C++ structs order their fields alike and assert the same sizes.
    #[test]
    fn the_layouts_are_what_the_kernels_read() {
        assert_eq!((size_of::<TailInputs>(), size_of::<TailState>()), (128, 120));
        assert_eq!((offset_of!(TailInputs, lr), offset_of!(TailInputs, growth_interval)), (80, 116));
        assert_eq!((offset_of!(TailState, scale), offset_of!(TailState, oldest_norm)), (72, 116));
    }
}
