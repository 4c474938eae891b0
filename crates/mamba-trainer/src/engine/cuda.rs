//! An NVIDIA GPU as an [`Engine`]. Calls enqueue and return; a graph is the device's own.

use super::groups::{control_spans, param_groups};
use super::readback::Readback;
use super::{Arena, Engine, Op, Progress, Staged, StepValues, Wait, unavailable};
use crate::builder::EngineConfig;
use crate::device_buffers::DeviceBuffers;
use crate::dist::DistContext;
use crate::error::{Result, TrainerError};
use crate::session::{Device, GemmMode, WeightDtype};
use half::{bf16, f16};
use mamba_cuda::{BlasMath, Capture, DeviceBuf, Gpu, Graph, View};
use mamba_kernels::gemm::Precision;
use mamba_kernels::{Elem, Kernels};
use mamba_model::cuda::{Arithmetic, CudaModel, CudaOptions, DeviceBatch, DeviceState, Resident, Weights};
use mamba_model::{LossSums, ModelInput, RecurrentState};
use mamba_optim::cuda::{DeviceArenas, DeviceTail, TailState};
use mamba_optim::{NormWindow, ScalerState, Schedule, SkipCounter, StepScalars};
use std::borrow::Cow;

/// The kernels of a GPU.
pub(crate) fn kernels_of(ordinal: usize) -> Result<Kernels> {
    let gpu = Gpu::open(ordinal).map_err(|error| {
        unavailable("device", Device::Cuda(ordinal).to_string(), format!("cpu ({error})"))
    })?;
    Ok(Kernels::new(&gpu))
}

/// The products of a mode in a precision.
pub(crate) fn arithmetic(mode: GemmMode, dtype: WeightDtype) -> Arithmetic {
    match (mode, dtype) {
        (GemmMode::Deterministic, WeightDtype::Tf32) => Arithmetic::Own(Precision::Tf32),
        (GemmMode::Deterministic, _) => Arithmetic::Own(Precision::Exact),
        (GemmMode::CublasFast, WeightDtype::Tf32) => Arithmetic::Blas(BlasMath::Tf32),
        (GemmMode::CublasFast, _) => Arithmetic::Blas(BlasMath::Fast),
        (GemmMode::CublasPedantic, _) => Arithmetic::Blas(BlasMath::Pedantic),
    }
}

/// Builds the engine of a GPU in the session's precision.
pub(super) fn open(config: EngineConfig, ordinal: usize) -> Result<Box<dyn Engine>> {
    let ctx = &config.ctx;
    let kernels = kernels_of(ordinal)?;
    let arithmetic = arithmetic(ctx.gemm_mode, ctx.dtype);
    Ok(match ctx.dtype {
        WeightDtype::F32 | WeightDtype::Tf32 => {
            Box::new(CudaEngine::<f32>::new(config, kernels, arithmetic)?)
        }
        WeightDtype::Bf16 => Box::new(CudaEngine::<bf16>::new(config, kernels, arithmetic)?),
        WeightDtype::F16 => Box::new(CudaEngine::<f16>::new(config, kernels, arithmetic)?),
    })
}

struct CudaEngine<T: Elem> {
    // Fields are dropped in this order: the graph before what it touches.
    graph: Option<Captured>,
    recording: Option<Recording>,
    readback: Readback,
    model: CudaModel<T>,
    tail: DeviceTail,
    params: DeviceBuf<f32>,
    /// Rounded copy of the parameters; absent where T is f32.
    shadow: Option<DeviceBuf<T>>,
    grads: DeviceBuf<f32>,
    batch: DeviceBatch,
    state: DeviceState,
    /// Whether the open window has a loss of its own.
    has_loss: bool,
    gpu: Gpu,
}

/// A captured step.
struct Captured {
    graph: Graph,
    has_loss: bool,
}

/// A capture in progress.
struct Recording {
    capture: Capture,
    has_loss: bool,
}

impl<T: Elem> CudaEngine<T> {
    fn new(config: EngineConfig, kernels: Kernels, arithmetic: Arithmetic) -> Result<Self> {
        let EngineConfig { weights, ctx, reference_no_decay, scaler, .. } = config;
        let (gpu, table) = (kernels.gpu().clone(), &ctx.table);
        let (batch, seq_len) = (ctx.session.batch, ctx.session.seq_len);
        let (recompute, input_gradient) = (ctx.recompute, ctx.input_gradient);
        let options = CudaOptions { arithmetic, recompute, input_gradient };
        let a_log = table.layers.iter().map(|layer| layer.a_log.range()).collect();
        let groups = param_groups(table, reference_no_decay)?;
        let control = control_spans(table, &ctx.model)?;
        let mut tail = DeviceTail::new(&kernels, groups, &control, a_log, scaler, &NormWindow::default())?;
        let mut arena = vec![0.0; table.arena_len()];
        for p in table.iter() {
            p.span.of_mut(&mut arena).copy_from_slice(p.span.of(weights.arena()));
        }
        let params = DeviceBuf::from_host(&gpu, &arena)?;
        let halves = size_of::<T>() != size_of::<f32>();
        let mut shadow = if halves { Some(DeviceBuf::zeros(&gpu, arena.len())?) } else { None };
        tail.refresh(params.view(), shadow.as_mut().map(DeviceBuf::view_mut))?;
        let mut engine = Self {
            graph: None,
            recording: None,
            readback: Readback::new(&gpu, tail.read_state()?)?,
            model: CudaModel::new(&kernels, &ctx.model, batch, seq_len, &options)?,
            tail,
            params,
            shadow,
            grads: DeviceBuf::zeros(&gpu, arena.len())?,
            batch: DeviceBatch::new(&gpu, &ctx.model, batch, seq_len)?,
            state: DeviceState::new(&gpu, &ctx.model.backbone, batch)?,
            has_loss: false,
            gpu,
        };
        let backward = if ctx.model.lm.is_some() { Op::LossBackward } else { Op::Backward };
        let ops = [Op::ZeroGrads, Op::Forward, backward, Op::Tail];
        kernels.prepare(|| ops.into_iter().try_for_each(|op| engine.run(op)))?;
        Ok(engine)
    }

    fn run(&mut self, op: Op) -> Result<()> {
        let Self { model, tail, params, shadow, grads, batch, state, .. } = self;
        let weights = Weights {
            master: params.view(),
            shadow: shadow.as_ref().map(DeviceBuf::view),
            neg_a: tail.neg_a(),
        };
        let scale = tail.loss_scale();
        match op {
            Op::ZeroGrads => {
                grads.view_mut().fill_bytes(0, self.gpu.compute())?;
                model.clear_loss()?;
            }
            Op::Forward => model.forward(weights, batch, Some(state))?,
            Op::Backward => model.backward(weights, batch, state, scale, grads.view_mut())?,
            Op::LossBackward => model.loss_backward(weights, batch, state, scale, grads.view_mut())?,
            Op::Tail => tail.enqueue(DeviceArenas {
                params: params.view_mut(),
                grads: grads.view_mut(),
                shadow: shadow.as_mut().map(DeviceBuf::view_mut),
            })?,
            Op::Publish => {}
        }
        Ok(())
    }

    /// Moves everything staged to where kernels read it.
    fn commit(&mut self) -> Result<()> {
        self.batch.commit()?;
        Ok(self.tail.commit()?)
    }

    fn publish(&mut self) -> Result<()> {
        let totals = self.model.loss_totals().filter(|_| self.has_loss);
        self.readback.publish(self.tail.state(), totals)
    }

    /// Changes what the device keeps from step to step; waits.
    fn change_state(&mut self, change: impl FnOnce(&mut TailState)) -> Result<()> {
        self.readback.settle()?;
        let mut state = self.tail.read_state()?;
        change(&mut state);
        self.tail.write_state(&state)?;
        self.readback.replaced(state);
        Ok(())
    }

    fn arena(&mut self, arena: Arena) -> &mut DeviceBuf<f32> {
        match arena {
            Arena::Master => &mut self.params,
            Arena::Grads => &mut self.grads,
            Arena::M => self.tail.m(),
            Arena::V => self.tail.v(),
        }
    }

    fn loss_sums(&self) -> Result<LossSums> {
        let Some(totals) = self.model.loss_totals().filter(|_| self.has_loss) else {
            return Ok(LossSums::default());
        };
        Ok(read_one(totals, &self.gpu)?.into())
    }
}

fn read_one<P: bytemuck::Pod>(view: View<'_, P>, gpu: &Gpu) -> Result<P> {
    let mut value = [P::zeroed()];
    view.read(&mut value, gpu.compute())?;
    Ok(value[0])
}

impl<T: Elem> Engine for CudaEngine<T> {
    fn stage(&mut self, data: Staged<'_>) -> Result<()> {
        match data {
            Staged::Input { input, reset } => self.batch.stage_input(input, reset)?,
            Staged::Upstream(d_temporal) => self.batch.stage_upstream(d_temporal)?,
            Staged::Targets { targets, weights } => self.batch.stage_targets(targets, weights)?,
        }
        Ok(())
    }

    fn set_values(&mut self, values: &StepValues) -> Result<()> {
        let options = values.opts.for_optimizer();
        // Step and scale are the device's own.
        let scalars =
            StepScalars::new(&values.adamw, &Schedule::constant(), 0, self.tail.scaler(), &options)?;
        Ok(self.tail.stage(&scalars, values.grad_factor)?)
    }

    fn enqueue(&mut self, op: Op) -> Result<()> {
        if let Some(recording) = &mut self.recording {
            recording.has_loss |= op == Op::LossBackward;
            return self.run(op);
        }
        self.commit()?;
        self.run(op)?;
        match op {
            Op::ZeroGrads => self.has_loss = false,
            Op::LossBackward => self.has_loss = true,
            Op::Publish => self.publish()?,
            Op::Forward | Op::Backward | Op::Tail => {}
        }
        Ok(())
    }

    fn progress(&mut self, wait: Wait) -> Result<Progress> {
        match wait {
            Wait::Yes => self.readback.settle()?,
            Wait::No => self.readback.poll()?,
        }
        let seen = self.readback.seen();
        let skips = SkipCounter {
            spikes: seen.spikes,
            outliers: seen.outliers,
            non_finite: seen.non_finite,
            overflows: seen.overflows,
            consecutive: seen.consecutive,
            limit: None,
        };
        Ok(Progress { step: seen.step, loss_scale: seen.scale, last: self.readback.last(), skips })
    }

    fn begin_capture(&mut self) -> Result<()> {
        let capture = Capture::begin(self.gpu.compute())?;
        self.recording = Some(Recording { capture, has_loss: false });
        Ok(())
    }

    fn end_capture(&mut self, keep: bool) -> Result<()> {
        let Some(Recording { capture, has_loss }) = self.recording.take() else { return Ok(()) };
        if keep {
            self.graph = Some(Captured { graph: capture.end()?, has_loss });
        }
        Ok(())
    }

    fn replay(&mut self) -> Result<()> {
        self.commit()?;
        let Some(Captured { graph, has_loss }) = &self.graph else {
            return Err(TrainerError::GraphStale { what: "recording" });
        };
        graph.launch()?;
        self.has_loss = *has_loss;
        self.publish()
    }

    fn drop_graph(&mut self) {
        self.graph = None;
    }

    fn has_graph(&self) -> bool {
        self.graph.is_some()
    }

    fn device_buffers(&mut self) -> Result<DeviceBuffers<'_>> {
        self.batch.commit()?;
        let temporal = self.model.temporal()?;
        let input_gradient = self.model.input_gradient();
        let Resident { input, reset, upstream } = self.batch.resident()?;
        Ok(DeviceBuffers { gpu: &self.gpu, input, reset, d_temporal: upstream, temporal, input_gradient })
    }

    fn read_temporal(&mut self, out: &mut [f32]) -> Result<()> {
        Ok(self.model.temporal()?.read(out, self.gpu.compute())?)
    }

    fn input_gradient(&mut self) -> Result<Cow<'_, [f32]>> {
        let missing = TrainerError::NoInputGradient { why: "it was not asked for" };
        let view = self.model.input_gradient().ok_or(missing)?;
        let mut host = vec![0.0; view.len()];
        view.read(&mut host, self.gpu.compute())?;
        Ok(Cow::Owned(host))
    }

    fn read(&mut self, arena: Arena) -> Result<Cow<'_, [f32]>> {
        let stream = self.gpu.compute().clone();
        Ok(Cow::Owned(self.arena(arena).to_host(&stream)?))
    }

    fn write(&mut self, arena: Arena, data: &[f32]) -> Result<()> {
        let stream = self.gpu.compute().clone();
        self.arena(arena).view_mut().write(data, &stream)?;
        if arena == Arena::Master {
            let shadow = self.shadow.as_mut().map(DeviceBuf::view_mut);
            self.tail.refresh(self.params.view(), shadow)?;
        }
        Ok(())
    }

    fn recurrence(&mut self) -> Result<RecurrentState> {
        Ok(self.state.read()?)
    }

    fn set_recurrence(&mut self, state: Option<&RecurrentState>) -> Result<()> {
        Ok(self.state.write(state)?)
    }

    fn set_step_count(&mut self, step: u64) -> Result<()> {
        self.change_state(|state| state.step = step)?;
        self.readback.forget();
        Ok(())
    }

    fn set_skips(&mut self, skips: SkipCounter) -> Result<()> {
        let SkipCounter { spikes, outliers, non_finite, overflows, consecutive, limit: _ } = skips;
        self.change_state(|s| {
            (s.spikes, s.outliers, s.non_finite) = (spikes, outliers, non_finite);
            (s.overflows, s.consecutive) = (overflows, consecutive);
        })
    }

    fn norms(&mut self) -> Result<Vec<f64>> {
        Ok(self.tail.norms()?)
    }

    fn set_norms(&mut self, norms: &[f64]) -> Result<()> {
        Ok(self.tail.set_norms(norms)?)
    }

    fn scaler(&mut self) -> Result<Option<ScalerState>> {
        Ok(self.tail.scaler_state()?)
    }

    fn set_scaler(&mut self, state: Option<ScalerState>) -> Result<()> {
        self.check_scaler(state)?;
        let Some(ScalerState { scale, growth_tracker }) = state else { return Ok(()) };
        self.change_state(|s| (s.scale, s.growth_tracker) = (scale, growth_tracker))
    }

    fn check_scaler(&self, state: Option<ScalerState>) -> Result<()> {
        Ok(self.tail.check_scaler_state(state)?)
    }

    fn set_reference_no_decay(&mut self, on: bool) -> Result<()> {
        Ok(self.tail.set_reference_no_decay(on)?)
    }

    fn all_reduce(&mut self, group: &DistContext, extra: &mut [f64]) -> Result<()> {
        let loss = self.loss_sums()?;
        let mut grads = self.read(Arena::Grads)?.into_owned();
        let mut sums = extra.to_vec();
        sums.extend([loss.nll, loss.weight, loss.tokens as f64]);
        group.all_reduce(&mut grads, &mut sums)?;
        self.write(Arena::Grads, &grads)?;
        extra.copy_from_slice(&sums[..extra.len()]);
        if let (true, [nll, weight, tokens]) = (self.has_loss, &sums[extra.len()..]) {
            let loss = LossSums { nll: *nll, weight: *weight, tokens: *tokens as u64 };
            self.model.set_loss_totals(&loss)?;
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
        self.batch.stage_input(input, reset)?;
        self.batch.stage_targets(targets, weights)?;
        self.batch.commit()?;
        let Self { model, tail, params, shadow, batch, .. } = self;
        let shadow = shadow.as_ref().map(DeviceBuf::view);
        let weights = Weights { master: params.view(), shadow, neg_a: tail.neg_a() };
        Ok(model.evaluate(weights, batch)?)
    }
}
