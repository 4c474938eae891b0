//! The CPU as an [`Engine`]: every call runs at once. A "graph" is the recorded list of operations, so capture and
//! replay keep the contract that a device's graph keeps.

use super::groups::{control_spans, param_groups};
use super::{Arena, Engine, Op, Progress, Staged, StepValues, Wait, unavailable};
use crate::builder::EngineConfig;
use crate::contract::TrainerContext;
use crate::device_buffers::DeviceBuffers;
use crate::dist::DistContext;
use crate::error::{Result, TrainerError};
use crate::metrics::{StepOpts, Verdict, WindowOutcome};
use mamba_model::cpu::{CpuModel, CpuOptions};
use mamba_model::{LossSums, ModelConfig, ModelInput, ParamTable, RecurrentState};
use mamba_optim::{
    AdamWConfig, AdamWState, ControlSpans, LossScaler, NormWindow, ParamGroups, ScalerState, Schedule,
    SkipCounter, StepOutcome, StepScalars, TailArenas, run_tail,
};
use std::borrow::Cow;

pub(crate) struct CpuEngine {
    model: CpuModel,
    /// Threads of the tail where a number was asked for; else the global pool.
    pool: Option<rayon::ThreadPool>,
    config: ModelConfig,
    batch: usize,
    params: Vec<f32>,
    grads: Vec<f32>,
    d_input: Option<Vec<f32>>,
    recurrence: RecurrentState,
    tail: Tail,
    staged: HostBatch,
    values: StepValues,
    /// Loss of the open window; `None` where its gradient came from the caller.
    loss: Option<LossSums>,
    taken: Option<(StepOutcome, f32)>,
    last: Option<WindowOutcome>,
    windows: u64,
    skips: SkipCounter,
    recording: Option<Vec<Op>>,
    graph: Option<Vec<Op>>,
}

/// What the optimizer owns beside parameters and gradients.
struct Tail {
    groups: ParamGroups,
    control: ControlSpans,
    state: AdamWState,
    norms: NormWindow,
    scaler: LossScaler,
}

/// Copies of the caller's buffers.
#[derive(Default)]
struct HostBatch {
    dense: Vec<f32>,
    ids: Vec<u32>,
    tokens_in: bool,
    reset: Vec<u8>,
    has_reset: bool,
    upstream: Vec<f32>,
    targets: Vec<i32>,
    weights: Vec<f32>,
    has_weights: bool,
}

impl CpuEngine {
    pub fn new(config: EngineConfig) -> Result<Self> {
        let EngineConfig { weights, ctx, reference_no_decay, threads, scaler } = config;
        let session = &ctx.session;
        check_memory(&ctx)?;
        let options = CpuOptions { threads, recompute: ctx.recompute };
        let mut model = CpuModel::new(&ctx.model, session.batch, session.seq_len, &options)?;
        let pool = threads.map(thread_pool).transpose()?;
        let len = ctx.table.arena_len();
        let mut params = vec![0.0; len];
        for p in ctx.table.iter() {
            p.span.of_mut(&mut params).copy_from_slice(p.span.of(weights.arena()));
        }
        model.refresh(&params)?;
        let input_len = session.batch * session.seq_len * ctx.model.backbone.input_width();
        Ok(Self {
            model,
            pool,
            batch: session.batch,
            params,
            grads: vec![0.0; len],
            d_input: ctx.input_gradient.then(|| vec![0.0; input_len]),
            recurrence: RecurrentState::zeros(&ctx.model.backbone, session.batch),
            tail: Tail::new(&ctx.table, &ctx.model, reference_no_decay, scaler)?,
            config: ctx.model,
            staged: HostBatch::default(),
            values: StepValues { adamw: AdamWConfig::default(), grad_factor: 1.0, opts: StepOpts::default() },
            loss: None,
            taken: None,
            last: None,
            windows: 0,
            skips: SkipCounter::new(None),
            recording: None,
            graph: None,
        })
    }

    fn run(&mut self, op: Op) -> Result<()> {
        match op {
            Op::ZeroGrads => {
                self.grads.fill(0.0);
                self.loss = None;
            }
            Op::Forward => {
                let (input, reset) = self.staged.input();
                self.model.forward(&self.params, input, reset, &mut self.recurrence)?;
            }
            Op::Backward => {
                let d_input = self.d_input.as_deref_mut();
                self.model.backward(&self.params, &self.staged.upstream, &mut self.grads, d_input)?;
            }
            Op::LossBackward => self.loss_backward()?,
            Op::Tail => self.run_tail()?,
            Op::Publish => self.publish()?,
        }
        Ok(())
    }

    fn loss_backward(&mut self) -> Result<()> {
        let weights = self.staged.has_weights.then_some(&self.staged.weights[..]);
        let scale = self.tail.scaler.scale();
        let sums =
            self.model.loss_backward(&self.params, &self.staged.targets, weights, scale, &mut self.grads)?;
        self.loss.get_or_insert_default().add(&sums);
        Ok(())
    }

    fn run_tail(&mut self) -> Result<()> {
        let Self { tail: Tail { groups, control, state, norms, scaler }, values, model, pool, .. } = self;
        let options = values.opts.for_optimizer();
        let mut scalars =
            StepScalars::new(&values.adamw, &Schedule::constant(), state.step, scaler, &options)?;
        let loss_scale = scalars.loss_scale;
        scalars.inv_scale = (values.grad_factor / f64::from(loss_scale)) as f32;
        let arenas = TailArenas { params: &mut self.params, grads: &mut self.grads, state, norms };
        let mut refreshed = Ok(());
        let run = || {
            run_tail(arenas, groups, control, scaler, &scalars, |params| refreshed = model.refresh(params))
        };
        let outcome = match pool {
            Some(pool) => pool.install(run),
            None => run(),
        }?;
        refreshed?;
        self.taken = Some((outcome, loss_scale));
        Ok(())
    }

    fn publish(&mut self) -> Result<()> {
        let Some((outcome, loss_scale)) = self.taken.take() else { return Ok(()) };
        self.windows += 1;
        self.skips.record(&outcome)?;
        let verdict = match outcome {
            StepOutcome::Stepped { .. } => Verdict::Applied,
            StepOutcome::SkippedSpike { .. } => Verdict::SpikeSkipped,
            StepOutcome::SkippedOutlier { .. } => Verdict::OutlierSkipped,
            StepOutcome::SkippedNonFinite { .. } => Verdict::NonFiniteSkipped,
            StepOutcome::SkippedOverflow { .. } => Verdict::OverflowSkipped,
        };
        self.last = Some(WindowOutcome {
            window: self.windows,
            verdict,
            step: self.tail.state.step,
            grad_norm: outcome.grad_norm(),
            loss_scale,
            loss: self.loss,
        });
        Ok(())
    }
}

impl Tail {
    fn new(
        table: &ParamTable,
        model: &ModelConfig,
        reference_no_decay: bool,
        scaler: LossScaler,
    ) -> Result<Self> {
        let groups = param_groups(table, reference_no_decay)?;
        let control = control_spans(table, model)?;
        let state = AdamWState::new(table.arena_len());
        Ok(Self { groups, control, state, norms: NormWindow::default(), scaler })
    }
}

/// Asks for a lower bound of the memory in one piece, so that a hopeless size is an error and not an abort.
fn check_memory(ctx: &TrainerContext) -> Result<()> {
    let c = &ctx.model.backbone;
    let rows = ctx.session.batch as u128 * c.n_layers as u128;
    let (conv, ssm) = (c.d_conv - 1, c.d_state);
    let recurrence = rows * c.d_inner() as u128 * (conv + ssm) as u128;
    let per_token = if ctx.recompute { c.d_model } else { c.d_model + 3 * c.d_inner() };
    let activations = rows * ctx.session.seq_len as u128 * per_token as u128;
    let arenas = 4 * ctx.table.arena_len() as u128;
    let bytes = 4 * (recurrence + activations + arenas);
    let fits = usize::try_from(bytes).is_ok_and(|n| Vec::<u8>::new().try_reserve_exact(n).is_ok());
    match fits {
        true => Ok(()),
        false => Err(TrainerError::OutOfMemory { bytes: u64::try_from(bytes).unwrap_or(u64::MAX) }),
    }
}

fn thread_pool(threads: usize) -> Result<rayon::ThreadPool> {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|_| TrainerError::Setting {
        name: "threads",
        value: threads.to_string(),
        expected: "a number of threads that the system can start",
    })
}

impl HostBatch {
    fn input(&self) -> (ModelInput<'_>, Option<&[u8]>) {
        let input = match self.tokens_in {
            true => ModelInput::Tokens(&self.ids),
            false => ModelInput::Dense(&self.dense),
        };
        (input, self.has_reset.then_some(&self.reset[..]))
    }

    fn put(&mut self, data: Staged<'_>) {
        match data {
            Staged::Input { input, reset } => {
                match input {
                    ModelInput::Dense(x) => replace(&mut self.dense, x),
                    ModelInput::Tokens(ids) => replace(&mut self.ids, ids),
                }
                self.tokens_in = matches!(input, ModelInput::Tokens(_));
                self.has_reset = reset.is_some();
                replace(&mut self.reset, reset.unwrap_or_default());
            }
            Staged::Upstream(d) => replace(&mut self.upstream, d),
            Staged::Targets { targets, weights } => {
                replace(&mut self.targets, targets);
                self.has_weights = weights.is_some();
                replace(&mut self.weights, weights.unwrap_or_default());
            }
        }
    }
}

fn replace<T: Copy>(to: &mut Vec<T>, from: &[T]) {
    to.clear();
    to.extend_from_slice(from);
}

impl Engine for CpuEngine {
    fn stage(&mut self, data: Staged<'_>) -> Result<()> {
        self.staged.put(data);
        Ok(())
    }

    fn set_values(&mut self, values: &StepValues) -> Result<()> {
        self.values = *values;
        Ok(())
    }

    fn enqueue(&mut self, op: Op) -> Result<()> {
        match &mut self.recording {
            Some(ops) => {
                ops.push(op);
                Ok(())
            }
            None => self.run(op),
        }
    }

    fn progress(&mut self, _wait: Wait) -> Result<Progress> {
        Ok(Progress {
            step: self.tail.state.step,
            loss_scale: self.tail.scaler.scale(),
            last: self.last,
            skips: self.skips,
        })
    }

    fn begin_capture(&mut self) -> Result<()> {
        self.recording = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&mut self, keep: bool) -> Result<()> {
        let recorded = self.recording.take();
        if keep {
            self.graph = recorded;
        }
        Ok(())
    }

    fn replay(&mut self) -> Result<()> {
        let Some(ops) = self.graph.take() else {
            return Err(TrainerError::GraphStale { what: "recording" });
        };
        let result = ops.iter().try_for_each(|&op| self.run(op));
        self.graph = Some(ops);
        result
    }

    fn drop_graph(&mut self) {
        self.graph = None;
    }

    fn has_graph(&self) -> bool {
        self.graph.is_some()
    }

    fn device_buffers(&mut self) -> Result<DeviceBuffers<'_>> {
        Err(unavailable("call", "device_buffers".to_owned(), "calls with host memory on the cpu"))
    }

    fn read_temporal(&mut self, out: &mut [f32]) -> Result<()> {
        out.copy_from_slice(self.model.temporal());
        Ok(())
    }

    fn input_gradient(&mut self) -> Result<Cow<'_, [f32]>> {
        let missing = TrainerError::NoInputGradient { why: "it was not asked for" };
        self.d_input.as_deref().map(Cow::Borrowed).ok_or(missing)
    }

    fn read(&mut self, arena: Arena) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Borrowed(match arena {
            Arena::Master => &self.params,
            Arena::Grads => &self.grads,
            Arena::M => &self.tail.state.m,
            Arena::V => &self.tail.state.v,
        }))
    }

    fn write(&mut self, arena: Arena, data: &[f32]) -> Result<()> {
        let to = match arena {
            Arena::Master => &mut self.params,
            Arena::Grads => &mut self.grads,
            Arena::M => &mut self.tail.state.m,
            Arena::V => &mut self.tail.state.v,
        };
        to.copy_from_slice(data);
        if arena == Arena::Master {
            self.model.refresh(&self.params)?;
        }
        Ok(())
    }

    fn recurrence(&mut self) -> Result<RecurrentState> {
        Ok(self.recurrence.clone())
    }

    fn set_recurrence(&mut self, state: Option<&RecurrentState>) -> Result<()> {
        match state {
            Some(state) => self.recurrence.clone_from(state),
            None => self.recurrence.reset(),
        }
        Ok(())
    }

    fn set_step_count(&mut self, step: u64) -> Result<()> {
        self.tail.state.step = step;
        self.last = None;
        Ok(())
    }

    fn set_skips(&mut self, skips: SkipCounter) -> Result<()> {
        self.skips = SkipCounter { limit: None, ..skips };
        Ok(())
    }

    fn norms(&mut self) -> Result<Vec<f64>> {
        Ok(self.tail.norms.norms().collect())
    }

    fn set_norms(&mut self, norms: &[f64]) -> Result<()> {
        Ok(self.tail.norms.restore(norms)?)
    }

    fn scaler(&mut self) -> Result<Option<ScalerState>> {
        Ok(self.tail.scaler.state())
    }

    fn set_scaler(&mut self, state: Option<ScalerState>) -> Result<()> {
        Ok(self.tail.scaler.restore(state)?)
    }

    fn check_scaler(&self, state: Option<ScalerState>) -> Result<()> {
        Ok(self.tail.scaler.clone().restore(state)?)
    }

    fn set_reference_no_decay(&mut self, on: bool) -> Result<()> {
        self.tail.groups.set_reference_no_decay(on);
        Ok(())
    }

    fn all_reduce(&mut self, group: &DistContext, extra: &mut [f64]) -> Result<()> {
        let loss = self.loss.unwrap_or_default();
        let mut sums = extra.to_vec();
        sums.extend([loss.nll, loss.weight, loss.tokens as f64]);
        group.all_reduce(&mut self.grads, &mut sums)?;
        extra.copy_from_slice(&sums[..extra.len()]);
        if let (Some(loss), [nll, weight, tokens]) = (&mut self.loss, &sums[extra.len()..]) {
            *loss = LossSums { nll: *nll, weight: *weight, tokens: *tokens as u64 };
        }
        Ok(())
    }

    fn evaluate(
        &mut self,
        input: ModelInput<'_>,
        reset: Option<&[u8]>,
        targets: &[i32],
        weights: Option<&[f32]>,
    ) -> Result<LossSums> {
        let mut empty = RecurrentState::zeros(&self.config.backbone, self.batch);
        self.model.forward(&self.params, input, reset, &mut empty)?;
        Ok(self.model.loss(&self.params, targets, weights)?)
    }
}
