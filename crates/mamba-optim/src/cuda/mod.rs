//! The same tail on an NVIDIA GPU: norms, clips, the decision, AdamW and the loss scale, without a word from the host.
//!
//! [`DeviceTail`] keeps moments, step count, scaler and the last norms on the device. What changes from step to step is
//! uploaded into one buffer before the step ([`DeviceTail::stage`], [`DeviceTail::commit`]); what was decided stays in
//! one [`TailState`] on the device and is read when somebody asks. So a captured [`DeviceTail::enqueue`] follows every
//! change.
//!
//! It knows no model: parameters and gradients are flat arenas of the caller's, and `a_log` ranges, whose
//! A = −exp(A_log) the same pass refreshes, may be empty.

mod tail;

pub use mamba_kernels::optim::{TailOutcome, TailState};
pub use tail::{DeviceArenas, DeviceTail};

use crate::norms::NormWindowConfig;
use crate::scalars::StepScalars;
use crate::scaler::LossScaler;
use mamba_kernels::optim::TailInputs;

/// What the device reads for `scalars`; it counts steps and keeps the scale itself.
fn inputs(
    scalars: &StepScalars,
    scaler: &LossScaler,
    window: &NormWindowConfig,
    grad_factor: f64,
) -> TailInputs {
    let config = scaler.config().copied().unwrap_or_default();
    TailInputs {
        beta1_exact: scalars.beta1_exact,
        beta2_exact: scalars.beta2_exact,
        clip_max: scalars.clip_max,
        control_clip_max: scalars.control_clip_max,
        skip_above: scalars.skip_above,
        skip_z_score: scalars.skip_z_score,
        deviation_floor: window.relative_floor,
        grad_factor,
        growth_factor: config.growth_factor,
        backoff_factor: config.backoff_factor,
        lr: scalars.lr,
        decay: scalars.decay,
        beta1: scalars.beta1,
        one_minus_beta1: scalars.one_minus_beta1,
        beta2: scalars.beta2,
        one_minus_beta2: scalars.one_minus_beta2,
        eps: scalars.eps,
        min_scale: config.min_scale.unwrap_or(0.0),
        max_scale: config.max_scale.unwrap_or(f32::INFINITY),
        growth_interval: config.growth_interval,
        min_norms: window.min_samples as u32,
        flags: scalars.flags,
    }
}
