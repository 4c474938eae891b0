//! The numbers of one step, as the bytes a device buffer holds.

use bytemuck::{Pod, Zeroable};

use crate::config::{AdamWConfig, NonFinite, StepOptions};
use crate::error::{OptimError, ensure};
use crate::scaler::LossScaler;
use crate::schedule::Schedule;

/// Everything about a step that changes from step to step. Rebuilt before every step; on a GPU it is uploaded
/// into one buffer that a captured graph reads, so schedules and thresholds stay live under the graph. The CPU
/// path reads the same struct.
///
/// Layout: `repr(C)`, 104 bytes, 8-byte aligned, no padding; the `f64` and `u64` fields come first. Thresholds that
/// are off are +inf (clips, z-score) or governed by `flags` (skip), so that a kernel needs no second switch:
///
/// - clip coefficient: `c = max / (norm + 1e-6)` in `f64`, used as `(float)c` if the norm is finite and `c < 1`,
///   else exactly 1;
/// - skip: `(flags & GUARD) != 0 && !(norm <= skip_above)`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct StepScalars {
    /// Number of this update, counted from 1: the `t` of the bias correction.
    pub step: u64,
    /// β₁ as given, for a device that keeps its own step count; see [`bias_correction`].
    pub beta1_exact: f64,
    /// β₂ as given.
    pub beta2_exact: f64,
    /// Largest global norm; +inf is off.
    pub clip_max: f64,
    /// Largest norm over the control spans; +inf is off.
    pub control_clip_max: f64,
    /// Largest norm that is not skipped; the largest finite `f64` where only NaN and Inf are skipped.
    pub skip_above: f64,
    /// Standard deviations above the mean of the last norms that make an outlier; +inf is off.
    pub skip_z_score: f64,
    /// Learning rate of this step, schedule included.
    pub lr: f32,
    /// `1 - lr * weight_decay`: the factor of decaying parameters.
    pub decay: f32,
    /// β₁.
    pub beta1: f32,
    /// `1 - β₁`, rounded after the difference.
    pub one_minus_beta1: f32,
    /// β₂.
    pub beta2: f32,
    /// `1 - β₂`, rounded after the difference.
    pub one_minus_beta2: f32,
    /// Term added to the denominator.
    pub eps: f32,
    /// `1 / (1 - β₁^step)`.
    pub bc1: f32,
    /// `1 / (1 - β₂^step)`.
    pub bc2: f32,
    /// Factor that turns the arena into the gradient: 1 / loss scale, times the factor of
    /// [`with_grad_factor`](Self::with_grad_factor).
    pub inv_scale: f32,
    /// Loss scale; 1 without a scaler.
    pub loss_scale: f32,
    /// [`StepScalars::GUARD`], [`StepScalars::SCALED`].
    pub flags: u32,
}

impl StepScalars {
    /// Flag: a step whose norm is above `skip_above`, or NaN, is skipped.
    pub const GUARD: u32 = 1;
    /// Flag: a loss scaler is on, so an Inf or NaN in the scaled gradients is an overflow.
    pub const SCALED: u32 = 2;

    /// The numbers of the update that follows `completed` finished ones.
    ///
    /// # Errors
    /// [`OptimError::Setting`] for a bad threshold in `options` or a step count at the end of its range.
    pub fn new(
        config: &AdamWConfig,
        schedule: &Schedule,
        completed: u64,
        scaler: &LossScaler,
        options: &StepOptions,
    ) -> Result<Self, OptimError> {
        options.check()?;
        ensure(completed < u64::MAX, "step", completed as f64, "below 2^64 - 1")?;
        let step = completed + 1;
        let lr = config.lr() * schedule.factor(completed);
        let skips = options.skip_above.is_some() || options.skip_z_score.is_some();
        let guard = skips || options.non_finite == NonFinite::Skip;
        let mut flags = 0;
        if guard {
            flags |= Self::GUARD;
        }
        if scaler.is_enabled() {
            flags |= Self::SCALED;
        }
        Ok(Self {
            step,
            beta1_exact: config.beta1(),
            beta2_exact: config.beta2(),
            clip_max: options.clip_max_norm.unwrap_or(f64::INFINITY),
            control_clip_max: options.control_clip_max_norm.unwrap_or(f64::INFINITY),
            skip_above: options.skip_above.unwrap_or(f64::MAX),
            skip_z_score: options.skip_z_score.unwrap_or(f64::INFINITY),
            lr: lr as f32,
            decay: (1.0 - lr * config.weight_decay()) as f32,
            beta1: config.beta1() as f32,
            one_minus_beta1: (1.0 - config.beta1()) as f32,
            beta2: config.beta2() as f32,
            one_minus_beta2: (1.0 - config.beta2()) as f32,
            eps: config.eps() as f32,
            bc1: bias_correction(config.beta1(), step),
            bc2: bias_correction(config.beta2(), step),
            inv_scale: scaler.inv_scale(),
            loss_scale: scaler.scale(),
            flags,
        })
    }

    /// Multiplies the gradient by one more factor, such as one over the number of counted tokens or of ranks.
    /// `inv_scale` becomes `factor / loss_scale`, rounded once.
    ///
    /// # Errors
    /// [`OptimError::Setting`] unless the factor is finite and above 0, before and after that rounding.
    pub fn with_grad_factor(self, factor: f64) -> Result<Self, OptimError> {
        let inv_scale = (factor / f64::from(self.loss_scale)) as f32;
        let ok = factor.is_finite() && inv_scale.is_finite() && inv_scale > 0.0;
        ensure(ok, "grad_factor", factor, "finite and above 0, also after the division by the loss scale")?;
        Ok(Self { inv_scale, ..self })
    }

    /// Factor of the global clip for a gradient of this norm: exactly 1 below `clip_max`, and where the norm is
    /// not finite, so that NaN and Inf stay in the gradient.
    pub fn clip(&self, norm: f64) -> f32 {
        crate::clip::coefficient(norm, self.clip_max)
    }

    /// Whether a step with this norm is skipped, whatever the norms before it were.
    pub fn skips(&self, norm: f64) -> bool {
        self.flags & Self::GUARD != 0 && crate::skip::is_spike(norm, self.skip_above)
    }

    /// Whether a loss scaler is on.
    pub const fn scaled(&self) -> bool {
        self.flags & Self::SCALED != 0
    }
}

/// `1 / (1 - β^step)`, in `f64`, rounded to `f32` at the end.
///
/// The power is taken by squaring: for each bit of `step` from the lowest, the result takes the base if the bit
/// is set, then the base is squared. These are plain `f64` products, so a kernel that does the same has the same
/// bits; a library `pow` has not.
pub fn bias_correction(beta: f64, step: u64) -> f32 {
    (1.0 / (1.0 - power(beta, step))) as f32
}

fn power(base: f64, exponent: u64) -> f64 {
    let (mut result, mut base, mut bits) = (1.0, base, exponent);
    while bits > 0 {
        if bits & 1 == 1 {
            result *= base;
        }
        base *= base;
        bits >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scaler::ScalerConfig;
    use crate::schedule::ScheduleKind;

    #[test]
    fn the_layout_is_what_a_kernel_expects() {
        use core::mem::{align_of, offset_of, size_of};
        assert_eq!((size_of::<StepScalars>(), align_of::<StepScalars>()), (104, 8));
        assert_eq!(offset_of!(StepScalars, step), 0);
        assert_eq!(offset_of!(StepScalars, clip_max), 24);
        assert_eq!(offset_of!(StepScalars, lr), 56);
        assert_eq!(offset_of!(StepScalars, bc2), 88);
        assert_eq!(offset_of!(StepScalars, flags), 100);
    }

    #[test]
    fn numbers_are_rounded_after_the_difference() {
        let s = StepScalars::new(
            &AdamWConfig::default(),
            &Schedule::constant(),
            0,
            &LossScaler::disabled(),
            &StepOptions::default(),
        )
        .unwrap();
        assert_eq!((s.step, s.lr, s.inv_scale, s.loss_scale), (1, 1e-3, 1.0, 1.0));
        assert_eq!((s.one_minus_beta1, s.one_minus_beta2), (0.1, 0.001));
        assert_ne!(s.one_minus_beta2, 1.0 - 0.999f32);
        assert_eq!(s.decay, 0.999_99);
        // bc = 1/(1 - β) at the first step: 10 and 1,000 up to f64 rounding.
        assert_eq!((s.bc1, s.bc2), (10.0, 1000.0));
        assert_eq!(s.flags, StepScalars::GUARD);
        assert_eq!((s.clip_max, s.skip_above), (f64::INFINITY, f64::MAX));
        assert_eq!(s.skip_z_score, f64::INFINITY);
    }

    #[test]
    fn schedule_scale_and_options_arrive() {
        let schedule = Schedule::new(ScheduleKind::LinearWarmup { warmup: 4 }).unwrap();
        let scaler = LossScaler::new(ScalerConfig::default()).unwrap();
        let options = StepOptions::default()
            .with_clip(2.0)
            .with_control_clip(0.5)
            .with_non_finite(NonFinite::Propagate);
        let s = StepScalars::new(&AdamWConfig::default(), &schedule, 1, &scaler, &options).unwrap();
        assert_eq!((s.step, s.lr), (2, 5e-4));
        assert_eq!((s.loss_scale, s.inv_scale), (65_536.0, 1.0 / 65_536.0));
        assert_eq!((s.clip_max, s.control_clip_max), (2.0, 0.5));
        assert_eq!(s.flags, StepScalars::SCALED);
        assert!(!s.skips(f64::NAN));
        // A spike skip brings the guard back, for NaN too.
        let s =
            StepScalars::new(&AdamWConfig::default(), &schedule, 1, &scaler, &options.with_skip_above(3.0))
                .unwrap();
        assert!(s.skips(f64::NAN) && s.skips(3.1) && !s.skips(3.0));
        let options = options.with_skip_z_score(4.0);
        let s = StepScalars::new(&AdamWConfig::default(), &schedule, 1, &scaler, &options).unwrap();
        assert!(s.skip_z_score == 4.0 && s.skips(f64::NAN) && !s.skips(f64::MAX));
    }

    #[test]
    fn the_gradient_factor_joins_the_scale() {
        let scaler = LossScaler::new(ScalerConfig { init_scale: 8.0, ..Default::default() }).unwrap();
        let (config, schedule) = (AdamWConfig::default(), Schedule::constant());
        let s = StepScalars::new(&config, &schedule, 0, &scaler, &StepOptions::default()).unwrap();
        assert_eq!(s.with_grad_factor(1.0), Ok(s));
        assert_eq!(s.with_grad_factor(1.0 / 3.0).unwrap().inv_scale, (1.0f64 / 24.0) as f32);
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-60, 1e60] {
            assert!(matches!(s.with_grad_factor(bad), Err(OptimError::Setting { .. })), "{bad}");
        }
    }

    #[test]
    fn powers_agree_with_logarithms() {
        for (beta, step) in [(0.9, 1u64), (0.9, 7), (0.999, 1_000), (0.95, 1_000_000), (0.0, 3)] {
            let want = if beta == 0.0 { 0.0 } else { f64::exp(step as f64 * f64::ln(beta)) };
            // Measured at most 2.2e-14 relative, from the logarithm.
            assert!((power(beta, step) - want).abs() <= 2e-13 * want, "{beta}^{step}");
        }
        assert_eq!(bias_correction(0.9, u64::MAX), 1.0);
        assert_eq!(bias_correction(0.0, 1), 1.0);
    }

    #[test]
    fn the_last_step_count_is_refused() {
        let s = StepScalars::new(
            &AdamWConfig::default(),
            &Schedule::constant(),
            u64::MAX,
            &LossScaler::disabled(),
            &StepOptions::default(),
        );
        assert!(matches!(s, Err(OptimError::Setting { name: "step", .. })));
    }
}
