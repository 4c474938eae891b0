//! AdamW with everything around it in one object, for a training loop that lives on the CPU.

use serde::{Deserialize, Serialize};

use crate::adamw::AdamWState;
use crate::config::{AdamWConfig, StepOptions};
use crate::error::OptimError;
use crate::groups::{ControlSpans, ParamGroups};
use crate::norms::NormWindow;
use crate::scalars::StepScalars;
use crate::scaler::{LossScaler, ScalerState};
use crate::schedule::Schedule;
use crate::skip::SkipCounter;
use crate::tail::{StepOutcome, TailArenas, run_tail};

/// What a resumed run needs, beside the parameters, to continue bit for bit. Save it in a format that keeps
/// floats exactly (bincode does; `serde_json` with its feature `float_roundtrip`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerState {
    /// Moments and step count.
    pub adamw: AdamWState,
    /// Loss scaler; `None` where it is disabled.
    pub scaler: Option<ScalerState>,
    /// Norms of the last steps.
    pub norms: NormWindow,
    /// Skipped steps so far.
    pub skips: SkipCounter,
}

/// AdamW over one arena: hyper-parameters, schedule, groups, clips, skips, loss scaler and state.
///
/// ```
/// use mamba_optim::{AdamWConfig, Optimizer, ParamGroups, StepOptions};
///
/// // Minimise (p - 3)²/2 from 0.
/// let config = AdamWConfig::default().with_lr(0.1)?.with_weight_decay(0.0)?;
/// let mut optimizer = Optimizer::new(config, ParamGroups::uniform(1)?);
/// optimizer.set_options(StepOptions::default().with_clip(1.0))?;
/// let mut p = [0.0f32];
/// for _ in 0..300 {
///     let mut gradient = [p[0] - 3.0];
///     optimizer.step(&mut p, &mut gradient)?;
/// }
/// assert!((p[0] - 3.0).abs() < 1e-2);
/// # Ok::<(), mamba_optim::OptimError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Optimizer {
    config: AdamWConfig,
    schedule: Schedule,
    groups: ParamGroups,
    control: ControlSpans,
    options: StepOptions,
    scaler: LossScaler,
    norms: NormWindow,
    skips: SkipCounter,
    state: AdamWState,
}

impl Optimizer {
    /// An optimizer with a constant schedule, no clip, no scaler and zero moments.
    pub fn new(config: AdamWConfig, groups: ParamGroups) -> Self {
        let state = AdamWState::new(groups.arena_len());
        Self {
            config,
            schedule: Schedule::constant(),
            groups,
            control: ControlSpans::none(),
            options: StepOptions::default(),
            scaler: LossScaler::disabled(),
            norms: NormWindow::default(),
            skips: SkipCounter::new(None),
            state,
        }
    }

    /// Sets the schedule.
    pub fn with_schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Sets the loss scaler.
    pub fn with_scaler(mut self, scaler: LossScaler) -> Self {
        self.scaler = scaler;
        self
    }

    /// Sets the elements under the control clip.
    pub fn with_control_spans(mut self, control: ControlSpans) -> Self {
        self.control = control;
        self
    }

    /// Sets the window of norms in which [`StepOptions::skip_z_score`] finds outliers.
    pub fn with_norm_window(mut self, norms: NormWindow) -> Self {
        self.norms = norms;
        self
    }

    /// Turns more than `limit` skips in a row into [`OptimError::TooManySkips`].
    pub const fn with_skip_limit(mut self, limit: u32) -> Self {
        self.skips.limit = Some(limit);
        self
    }

    /// Sets clips and skips.
    ///
    /// # Errors
    /// [`OptimError::Setting`] for a bad threshold, [`OptimError::NoControlSpans`] for a control clip without
    /// control spans. Nothing changes then.
    pub fn set_options(&mut self, options: StepOptions) -> Result<(), OptimError> {
        options.check()?;
        if let Some(max_norm) = options.control_clip_max_norm
            && self.control.is_empty()
        {
            return Err(OptimError::NoControlSpans { max_norm });
        }
        self.options = options;
        Ok(())
    }

    /// Sets the base learning rate.
    ///
    /// # Errors
    /// [`OptimError::Setting`] unless it is finite and above 0.
    pub fn set_lr(&mut self, lr: f64) -> Result<(), OptimError> {
        self.config = self.config.with_lr(lr)?;
        Ok(())
    }

    /// Hyper-parameters.
    pub const fn config(&self) -> &AdamWConfig {
        &self.config
    }

    /// Parameter groups.
    pub const fn groups(&self) -> &ParamGroups {
        &self.groups
    }

    /// Parameter groups, to switch the no-decay groups.
    pub const fn groups_mut(&mut self) -> &mut ParamGroups {
        &mut self.groups
    }

    /// Loss scaler: multiply the loss by its scale.
    pub const fn scaler(&self) -> &LossScaler {
        &self.scaler
    }

    /// Moments and step count.
    pub const fn adamw_state(&self) -> &AdamWState {
        &self.state
    }

    /// Skipped steps so far.
    pub const fn skips(&self) -> &SkipCounter {
        &self.skips
    }

    /// The numbers of the next step.
    ///
    /// # Errors
    /// [`OptimError::Setting`] where the step count is at the end of its range.
    pub fn scalars(&self) -> Result<StepScalars, OptimError> {
        StepScalars::new(&self.config, &self.schedule, self.state.step, &self.scaler, &self.options)
    }

    /// One step; see [`run_tail`].
    ///
    /// # Errors
    /// Those of [`run_tail`], and [`OptimError::TooManySkips`]. The latter leaves what a skipped step leaves;
    /// every other error leaves everything as it was.
    pub fn step(&mut self, params: &mut [f32], grads: &mut [f32]) -> Result<StepOutcome, OptimError> {
        self.step_with(params, grads, |_| {})
    }

    /// [`step`](Self::step) with a hook that sees the new parameters after a real step.
    ///
    /// # Errors
    /// Those of [`step`](Self::step).
    pub fn step_with(
        &mut self,
        params: &mut [f32],
        grads: &mut [f32],
        refresh: impl FnOnce(&[f32]),
    ) -> Result<StepOutcome, OptimError> {
        let scalars = self.scalars()?;
        let arenas = TailArenas { params, grads, state: &mut self.state, norms: &mut self.norms };
        let outcome = run_tail(arenas, &self.groups, &self.control, &mut self.scaler, &scalars, refresh)?;
        self.skips.record(&outcome)?;
        Ok(outcome)
    }

    /// State to save.
    pub fn state(&self) -> OptimizerState {
        OptimizerState {
            adamw: self.state.clone(),
            scaler: self.scaler.state(),
            norms: self.norms.clone(),
            skips: self.skips,
        }
    }

    /// Puts a saved state back. The norm window is taken from the state, settings included.
    ///
    /// # Errors
    /// [`OptimError::Length`], [`OptimError::State`] or [`OptimError::ScalerKind`] for a state that does not fit;
    /// nothing changes then.
    pub fn load_state(&mut self, saved: OptimizerState) -> Result<(), OptimError> {
        saved.adamw.check(self.groups.arena_len())?;
        self.scaler.restore(saved.scaler)?;
        self.state = saved.adamw;
        self.norms = saved.norms;
        self.skips = saved.skips;
        Ok(())
    }
}
