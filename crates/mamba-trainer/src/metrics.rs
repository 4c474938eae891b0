//! Options of a step and what it reports.

use crate::error::{Result, TrainerError, check_positive};
use mamba_optim::{NonFinite, StepOptions};
use serde::{Deserialize, Serialize};

/// Thresholds of a step that changes weights. All norms are those of the unscaled gradient. Default: all off, and
/// a gradient that is not finite is skipped.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct StepOpts {
    /// Scales the gradient so that its global L2 norm is at most this.
    pub clip_max_norm: Option<f64>,
    /// Discards the window where the norm before clipping is above this or not finite.
    pub step_skip_above: Option<f64>,
    /// Scales the gradients of step size and decay (x_proj's dt columns, dt_proj weight and bias, A_log) so that
    /// their joint L2 norm is at most this; before the global clip.
    pub control_clip_max_norm: Option<f64>,
    /// Discards the window where the norm before clipping lies more than this many standard deviations above the mean
    /// of the last 128 applied windows' norms, or is not finite. The deviation counts as at least 5 % of the mean;
    /// nothing is discarded before 16 windows were applied.
    pub skip_z_score: Option<f64>,
    /// What a gradient with NaN or Inf does where both skips are off; by default the window is discarded.
    pub non_finite: NonFinite,
}

impl StepOpts {
    /// No thresholds.
    pub fn new() -> Self {
        Self::default()
    }

    /// Global-norm clip.
    #[must_use]
    pub fn with_clip_max_norm(mut self, max_norm: f64) -> Self {
        self.clip_max_norm = Some(max_norm);
        self
    }

    /// Spike skip.
    #[must_use]
    pub fn with_step_skip_above(mut self, threshold: f64) -> Self {
        self.step_skip_above = Some(threshold);
        self
    }

    /// Skip of outliers among the last norms.
    #[must_use]
    pub fn with_skip_z_score(mut self, z_score: f64) -> Self {
        self.skip_z_score = Some(z_score);
        self
    }

    /// Control clip.
    #[must_use]
    pub fn with_control_clip_max_norm(mut self, max_norm: f64) -> Self {
        self.control_clip_max_norm = Some(max_norm);
        self
    }

    /// What a gradient with NaN or Inf does.
    #[must_use]
    pub fn with_non_finite(mut self, policy: NonFinite) -> Self {
        self.non_finite = policy;
        self
    }

    /// Checks that every threshold is finite and above 0.
    ///
    /// # Errors
    /// [`TrainerError::Setting`] naming the first that is not.
    pub fn validate(&self) -> Result<()> {
        for (name, value) in self.named() {
            if let Some(value) = value {
                check_positive(name, value)?;
            }
        }
        Ok(())
    }

    /// The same thresholds as the optimizer takes them.
    pub(crate) fn for_optimizer(&self) -> StepOptions {
        let mut options = StepOptions::default().with_non_finite(self.non_finite);
        options.clip_max_norm = self.clip_max_norm;
        options.control_clip_max_norm = self.control_clip_max_norm;
        options.skip_above = self.step_skip_above;
        options.skip_z_score = self.skip_z_score;
        options
    }

    pub(crate) fn named(&self) -> [(&'static str, Option<f64>); 4] {
        [
            ("clip_max_norm", self.clip_max_norm),
            ("step_skip_above", self.step_skip_above),
            ("skip_z_score", self.skip_z_score),
            ("control_clip_max_norm", self.control_clip_max_norm),
        ]
    }
}

/// Options of one `backward_step`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct BackwardOpts {
    /// See [`StepOpts::clip_max_norm`].
    pub clip_max_norm: Option<f64>,
    /// Adds to the gradient arena and moves nothing else.
    pub accumulate_only: bool,
    /// See [`StepOpts::step_skip_above`].
    pub step_skip_above: Option<f64>,
    /// See [`StepOpts::skip_z_score`].
    pub skip_z_score: Option<f64>,
    /// See [`StepOpts::control_clip_max_norm`].
    pub control_clip_max_norm: Option<f64>,
    /// See [`StepOpts::non_finite`].
    pub non_finite: NonFinite,
}

impl BackwardOpts {
    /// Applies the window, nothing clipped; a gradient that is not finite is skipped.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the window open.
    #[must_use]
    pub fn with_accumulate_only(mut self, accumulate_only: bool) -> Self {
        self.accumulate_only = accumulate_only;
        self
    }

    /// Global-norm clip.
    #[must_use]
    pub fn with_clip_max_norm(mut self, max_norm: f64) -> Self {
        self.clip_max_norm = Some(max_norm);
        self
    }

    /// Spike skip.
    #[must_use]
    pub fn with_step_skip_above(mut self, threshold: f64) -> Self {
        self.step_skip_above = Some(threshold);
        self
    }

    /// Skip of outliers among the last norms.
    #[must_use]
    pub fn with_skip_z_score(mut self, z_score: f64) -> Self {
        self.skip_z_score = Some(z_score);
        self
    }

    /// Control clip.
    #[must_use]
    pub fn with_control_clip_max_norm(mut self, max_norm: f64) -> Self {
        self.control_clip_max_norm = Some(max_norm);
        self
    }

    /// What a gradient with NaN or Inf does.
    #[must_use]
    pub fn with_non_finite(mut self, policy: NonFinite) -> Self {
        self.non_finite = policy;
        self
    }

    /// The thresholds alone.
    pub fn step_opts(&self) -> StepOpts {
        StepOpts {
            clip_max_norm: self.clip_max_norm,
            step_skip_above: self.step_skip_above,
            skip_z_score: self.skip_z_score,
            control_clip_max_norm: self.control_clip_max_norm,
            non_finite: self.non_finite,
        }
    }

    /// Checks the thresholds, and that none of them goes with `accumulate_only`.
    ///
    /// # Errors
    /// [`TrainerError::Setting`], [`TrainerError::OptionWhileAccumulating`].
    pub fn validate(&self) -> Result<()> {
        let opts = self.step_opts();
        opts.validate()?;
        match opts.named().iter().find(|(_, v)| self.accumulate_only && v.is_some()) {
            Some(&(option, _)) => Err(TrainerError::OptionWhileAccumulating { option }),
            None => Ok(()),
        }
    }
}

impl From<StepOpts> for BackwardOpts {
    fn from(opts: StepOpts) -> Self {
        Self {
            clip_max_norm: opts.clip_max_norm,
            accumulate_only: false,
            step_skip_above: opts.step_skip_above,
            skip_z_score: opts.skip_z_score,
            control_clip_max_norm: opts.control_clip_max_norm,
            non_finite: opts.non_finite,
        }
    }
}

/// What became of a closed window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Verdict {
    /// The weights moved.
    Applied,
    /// The norm was above the skip threshold: nothing moved.
    SpikeSkipped,
    /// The norm was an outlier among the last ones, see [`StepOpts::skip_z_score`]: nothing moved.
    OutlierSkipped,
    /// The gradient held a NaN or an infinity: nothing moved.
    NonFiniteSkipped,
    /// The scaled gradients overflowed: nothing but the loss scale moved.
    OverflowSkipped,
}

/// Outcome of the last window that was closed.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct WindowOutcome {
    /// Windows closed since the trainer was built, this one included.
    pub window: u64,
    /// What became of it.
    pub verdict: Verdict,
    /// Optimizer steps applied so far, this window included where it was applied.
    pub step: u64,
    /// Global norm after the unscale and the control clip, before the global clip; `None` after an overflow.
    pub grad_norm: Option<f64>,
    /// Loss scale of the window; 1 where there is none.
    pub loss_scale: f32,
    /// Loss sums of a language model's window.
    pub loss: Option<mamba_model::LossSums>,
}

/// A NaN or an infinity in the gradient arena.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct NonFiniteGradient {
    /// Name of the tensor.
    pub tensor: String,
    /// Flat index inside the tensor.
    pub index: usize,
    /// The value.
    pub value: f32,
}

/// What a fused step reports without waiting for the device.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct StepMetrics {
    /// Optimizer steps applied, by the newest outcome that is known; see `lag`.
    pub step: u64,
    /// Whether this step was a replay of the captured graph.
    pub graph_replayed: bool,
    /// Loss scale of the step that is reported; 1 where there is none.
    pub loss_scale: f32,
    /// Whether the reported step overflowed and moved nothing but the loss scale.
    pub overflow_skipped: bool,
    /// Steps between this one and the one that `step`, `loss_scale` and `overflow_skipped` speak of: 0 on the
    /// CPU, at most 1 on an asynchronous device. `last_outcome` waits for the newest.
    pub lag: u64,
}

/// What a `backward_step` or `apply_step` reports.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct BackwardMetrics {
    /// Optimizer steps applied so far.
    pub step: u64,
    /// Whether the weights moved.
    pub optimizer_stepped: bool,
    /// Global norm after the unscale and the control clip, before the global clip; `None` after an overflow and on
    /// accumulating calls.
    pub grad_norm: Option<f64>,
    /// Loss scale of the window; 1 where there is none.
    pub loss_scale: f32,
    /// Whether the scaled gradients overflowed.
    pub overflow_skipped: bool,
}

/// What a language-model step reports.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct LmStepMetrics {
    /// Optimizer steps applied, by the newest outcome that is known; see `lag`.
    pub step: u64,
    /// Mean negative log-likelihood of the counted tokens of the window, in nats; NaN where no outcome is known yet.
    pub loss: f64,
    /// Counted tokens of the window.
    pub tokens: u64,
    /// Global norm after the unscale and the control clip, before the global clip; `None` after an overflow.
    pub grad_norm: Option<f64>,
    /// What became of the window; `None` where no outcome is known yet.
    pub verdict: Option<Verdict>,
    /// Whether this step was a replay of the captured graph.
    pub graph_replayed: bool,
    /// Loss scale of the window; 1 where there is none.
    pub loss_scale: f32,
    /// Whether the window overflowed.
    pub overflow_skipped: bool,
    /// Steps between this one and the one that the other fields speak of: 0 on the CPU, at most 1 on an
    /// asynchronous device. `last_metrics` waits for the newest.
    pub lag: u64,
}

/// What an accumulating language-model call reports; known on the host, so nothing is waited for.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct MicroBatchMetrics {
    /// Micro-batches in the window, this one included.
    pub micro_batches: u64,
    /// Counted tokens of this micro-batch.
    pub tokens: u64,
    /// Σ weight over the counted tokens of the whole window so far.
    pub window_weight: f64,
}
