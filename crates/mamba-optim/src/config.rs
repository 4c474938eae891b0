//! Hyper-parameters of AdamW and the options of a step.

use serde::{Deserialize, Serialize};

use crate::clip::check_threshold;
use crate::error::{OptimError, ensure};

/// Hyper-parameters of AdamW, as the decimal numbers they are written as (`f64`); they are rounded to `f32` once
/// a step, after the products and differences that would amplify the rounding.
///
/// ```
/// use mamba_optim::AdamWConfig;
/// let config = AdamWConfig::default().with_lr(3e-4)?.with_betas(0.9, 0.95)?;
/// assert_eq!(config.weight_decay(), 0.01);
/// assert!(config.with_lr(f64::NAN).is_err());
/// # Ok::<(), mamba_optim::OptimError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "AdamWFields", into = "AdamWFields")]
pub struct AdamWConfig {
    fields: AdamWFields,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AdamWFields {
    lr: f64,
    weight_decay: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
}

impl Default for AdamWConfig {
    /// lr 1e-3, weight decay 1e-2, betas 0.9 and 0.999, eps 1e-8.
    fn default() -> Self {
        let fields = AdamWFields { lr: 1e-3, weight_decay: 1e-2, beta1: 0.9, beta2: 0.999, eps: 1e-8 };
        Self { fields }
    }
}

impl AdamWConfig {
    /// Sets the learning rate.
    ///
    /// # Errors
    /// [`OptimError::Setting`] unless it is finite and above 0 as an `f32`.
    pub fn with_lr(self, lr: f64) -> Result<Self, OptimError> {
        Self { fields: AdamWFields { lr, ..self.fields } }.checked()
    }

    /// Sets the weight decay (decoupled: `p` shrinks by `lr * weight_decay` of itself a step).
    ///
    /// # Errors
    /// [`OptimError::Setting`] unless it is finite and at least 0.
    pub fn with_weight_decay(self, weight_decay: f64) -> Result<Self, OptimError> {
        Self { fields: AdamWFields { weight_decay, ..self.fields } }.checked()
    }

    /// Sets the decay rates of both moments.
    ///
    /// # Errors
    /// [`OptimError::Setting`] unless both are at least 0 and below 1 as `f32`.
    pub fn with_betas(self, beta1: f64, beta2: f64) -> Result<Self, OptimError> {
        Self { fields: AdamWFields { beta1, beta2, ..self.fields } }.checked()
    }

    /// Sets the term that keeps the denominator away from 0.
    ///
    /// # Errors
    /// [`OptimError::Setting`] unless it is finite and above 0 as an `f32` (with 0, an element that never had a
    /// gradient would become 0/0).
    pub fn with_eps(self, eps: f64) -> Result<Self, OptimError> {
        Self { fields: AdamWFields { eps, ..self.fields } }.checked()
    }

    /// Base learning rate.
    pub const fn lr(&self) -> f64 {
        self.fields.lr
    }

    /// Weight decay.
    pub const fn weight_decay(&self) -> f64 {
        self.fields.weight_decay
    }

    /// Decay rate of the first moment.
    pub const fn beta1(&self) -> f64 {
        self.fields.beta1
    }

    /// Decay rate of the second moment.
    pub const fn beta2(&self) -> f64 {
        self.fields.beta2
    }

    /// Term added to the denominator.
    pub const fn eps(&self) -> f64 {
        self.fields.eps
    }

    fn checked(self) -> Result<Self, OptimError> {
        let AdamWFields { lr, weight_decay, beta1, beta2, eps } = self.fields;
        ensure(positive_f32(lr), "lr", lr, "finite and above 0 as an f32")?;
        let decay_ok = weight_decay >= 0.0 && (weight_decay as f32).is_finite();
        ensure(decay_ok, "weight_decay", weight_decay, "finite and at least 0")?;
        for (name, beta) in [("beta1", beta1), ("beta2", beta2)] {
            let ok = beta >= 0.0 && (beta as f32) < 1.0;
            ensure(ok, name, beta, "at least 0 and below 1 as an f32")?;
        }
        ensure(positive_f32(eps), "eps", eps, "finite and above 0 as an f32")?;
        Ok(self)
    }
}

impl TryFrom<AdamWFields> for AdamWConfig {
    type Error = OptimError;

    fn try_from(fields: AdamWFields) -> Result<Self, OptimError> {
        Self { fields }.checked()
    }
}

impl From<AdamWConfig> for AdamWFields {
    fn from(config: AdamWConfig) -> Self {
        config.fields
    }
}

fn positive_f32(x: f64) -> bool {
    let x = x as f32;
    x.is_finite() && x > 0.0
}

/// What a step does with a gradient whose norm is NaN or infinite while no spike skip is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NonFinite {
    /// The step is skipped and says so; no weight and no moment moves.
    #[default]
    Skip,
    /// The step is taken without clipping: the bad elements reach their weights, in the open.
    Propagate,
}

/// Clips and skips of a step. Everything is off by default, except that a non-finite gradient is skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct StepOptions {
    /// Largest global gradient norm; longer gradients are scaled down to it.
    pub clip_max_norm: Option<f64>,
    /// Largest norm over the control spans, applied before the global norm is taken.
    pub control_clip_max_norm: Option<f64>,
    /// Steps with a larger norm, or one that is not finite, are skipped. Works without clipping.
    pub skip_above: Option<f64>,
    /// Steps are skipped whose norm lies more than this many standard deviations above the mean of the last steps'
    /// norms, see [`NormWindow`](crate::NormWindow), or is not finite.
    pub skip_z_score: Option<f64>,
    /// See [`NonFinite`]. With one of the skips set, a non-finite norm is always skipped.
    pub non_finite: NonFinite,
}

impl StepOptions {
    /// Sets the global clip.
    pub const fn with_clip(mut self, max_norm: f64) -> Self {
        self.clip_max_norm = Some(max_norm);
        self
    }

    /// Sets the control clip.
    pub const fn with_control_clip(mut self, max_norm: f64) -> Self {
        self.control_clip_max_norm = Some(max_norm);
        self
    }

    /// Sets the spike skip.
    pub const fn with_skip_above(mut self, threshold: f64) -> Self {
        self.skip_above = Some(threshold);
        self
    }

    /// Sets the skip of outliers.
    pub const fn with_skip_z_score(mut self, z_score: f64) -> Self {
        self.skip_z_score = Some(z_score);
        self
    }

    /// Sets what a non-finite gradient does.
    pub const fn with_non_finite(mut self, policy: NonFinite) -> Self {
        self.non_finite = policy;
        self
    }

    /// Checks the thresholds.
    ///
    /// # Errors
    /// [`OptimError::Setting`] naming the first that is not finite and above 0.
    pub fn check(&self) -> Result<(), OptimError> {
        let thresholds = [
            ("clip_max_norm", self.clip_max_norm),
            ("control_clip_max_norm", self.control_clip_max_norm),
            ("skip_above", self.skip_above),
            ("skip_z_score", self.skip_z_score),
        ];
        for (name, threshold) in thresholds {
            if let Some(value) = threshold {
                check_threshold(name, value)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_hyper_parameters_are_refused_by_name() {
        let c = AdamWConfig::default();
        let named = |r: Result<AdamWConfig, OptimError>| match r {
            Err(OptimError::Setting { name, .. }) => name,
            other => panic!("{other:?}"),
        };
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e39, 1e-50] {
            assert_eq!(named(c.with_lr(bad)), "lr");
            assert_eq!(named(c.with_eps(bad)), "eps");
        }
        for bad in [-0.1, f64::NAN, f64::INFINITY] {
            assert_eq!(named(c.with_weight_decay(bad)), "weight_decay");
        }
        for bad in [-0.1, 1.0, f64::NAN, 0.999_999_999] {
            assert_eq!(named(c.with_betas(bad, 0.9)), "beta1");
            assert_eq!(named(c.with_betas(0.9, bad)), "beta2");
        }
        assert!(c.with_betas(0.0, 0.0).is_ok());
        assert!(c.with_weight_decay(0.0).is_ok());
    }

    #[test]
    fn config_files_are_checked_like_calls() {
        let c = AdamWConfig::default().with_lr(0.003).unwrap();
        let text = serde_json::to_string(&c).unwrap();
        assert_eq!(text, r#"{"lr":0.003,"weight_decay":0.01,"beta1":0.9,"beta2":0.999,"eps":1e-8}"#);
        assert_eq!(serde_json::from_str::<AdamWConfig>(&text).unwrap(), c);
        let bad = text.replace("0.9,", "1.9,");
        assert!(serde_json::from_str::<AdamWConfig>(&bad).unwrap_err().to_string().contains("beta1"));
        let unknown = text.replace("eps", "epsilon");
        assert!(serde_json::from_str::<AdamWConfig>(&unknown).is_err());
    }

    #[test]
    fn thresholds_are_checked() {
        for bad in [0.0, -2.0, f64::NAN, f64::INFINITY] {
            for options in [
                StepOptions::default().with_clip(bad),
                StepOptions::default().with_control_clip(bad),
                StepOptions::default().with_skip_above(bad),
                StepOptions::default().with_skip_z_score(bad),
            ] {
                assert!(matches!(options.check(), Err(OptimError::Setting { .. })), "{options:?}");
            }
        }
        assert_eq!(StepOptions::default().with_clip(1.0).with_skip_above(10.0).check(), Ok(()));
    }
}
