//! One builder behind every constructor.

use crate::contract::{Core, TrainerContext};
use crate::engine;
use crate::error::{Result, TrainerError};
use crate::metrics::StepOpts;
use crate::session::{Device, GemmMode, TrainSessionCfg, WeightDtype};
use crate::trainer::{ModelKind, Trainer};
use mamba_model::MambaWeights;
use mamba_model::cpu::MAX_THREADS;
use mamba_optim::{AdamWConfig, LossScaler, ScalerConfig};
use std::marker::PhantomData;

/// Options of a trainer. Everything is checked by [`build`](Self::build).
#[derive(Debug, Clone)]
pub struct TrainerBuilder<K: ModelKind> {
    weights: MambaWeights,
    session: TrainSessionCfg,
    options: Options,
    kind: PhantomData<fn() -> K>,
}

#[derive(Debug, Clone)]
struct Options {
    dtype: WeightDtype,
    device: Option<Device>,
    gemm_mode: GemmMode,
    betas: (f64, f64),
    eps: f64,
    step_opts: StepOpts,
    reference_no_decay: bool,
    input_gradient: bool,
    recompute: bool,
    threads: Option<usize>,
    skip_limit: Option<u32>,
    scaler: ScalerConfig,
}

/// What an engine is built from.
pub(crate) struct EngineConfig {
    pub weights: MambaWeights,
    pub ctx: TrainerContext,
    pub reference_no_decay: bool,
    pub threads: Option<usize>,
    pub scaler: LossScaler,
}

impl<K: ModelKind> TrainerBuilder<K> {
    pub(crate) fn new(weights: MambaWeights, session: TrainSessionCfg) -> Self {
        let adamw = AdamWConfig::default();
        let options = Options {
            dtype: WeightDtype::F32,
            device: None,
            gemm_mode: GemmMode::Deterministic,
            betas: (adamw.beta1(), adamw.beta2()),
            eps: adamw.eps(),
            step_opts: StepOpts::default(),
            reference_no_decay: true,
            input_gradient: false,
            recompute: false,
            threads: None,
            skip_limit: None,
            scaler: ScalerConfig::default(),
        };
        Self { weights, session, options, kind: PhantomData }
    }

    /// Storage of the bulk weights; default f32.
    #[must_use]
    pub fn dtype(mut self, dtype: WeightDtype) -> Self {
        self.options.dtype = dtype;
        self
    }

    /// Where to train; default [`Device::auto`].
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.options.device = Some(device);
        self
    }

    /// Which matrix products run; default deterministic.
    #[must_use]
    pub fn gemm_mode(mut self, mode: GemmMode) -> Self {
        self.options.gemm_mode = mode;
        self
    }

    /// Learning rate of the first step; default 1e-3.
    #[must_use]
    pub fn lr(mut self, lr: f64) -> Self {
        self.session.lr = lr;
        self
    }

    /// Decoupled weight decay; default 1e-2.
    #[must_use]
    pub fn weight_decay(mut self, weight_decay: f64) -> Self {
        self.session.weight_decay = weight_decay;
        self
    }

    /// Decay rates of the moments; default 0.9 and 0.999.
    #[must_use]
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Self {
        self.options.betas = (beta1, beta2);
        self
    }

    /// AdamW's epsilon; default 1e-8.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> Self {
        self.options.eps = eps;
        self
    }

    /// Clip and skip of the fused step; default off.
    #[must_use]
    pub fn step_opts(mut self, opts: StepOpts) -> Self {
        self.options.step_opts = opts;
        self
    }

    /// Whether A_log, D, the Δ bias and norm scales are spared from decay; default yes.
    #[must_use]
    pub fn reference_no_decay(mut self, on: bool) -> Self {
        self.options.reference_no_decay = on;
        self
    }

    /// Whether backward passes keep the gradient of the input; default no, and not for a language model.
    #[must_use]
    pub fn input_gradient(mut self, on: bool) -> Self {
        self.options.input_gradient = on;
        self
    }

    /// Whether to keep only the blocks' inputs and recompute the rest in the backward pass: the same bits, less
    /// memory, more time. Default no.
    #[must_use]
    pub fn recompute(mut self, on: bool) -> Self {
        self.options.recompute = on;
        self
    }

    /// Threads of the CPU engine; default all cores. The result does not depend on it.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.options.threads = Some(threads);
        self
    }

    /// Turns more than `limit` windows skipped in a row, as spikes or not finite, into
    /// [`TooManySkips`](mamba_optim::OptimError::TooManySkips). The call that returns it has skipped its window like
    /// any other; overflows of the loss scale do not count. Default: no limit.
    #[must_use]
    pub fn skip_limit(mut self, limit: u32) -> Self {
        self.options.skip_limit = Some(limit);
        self
    }

    /// Settings of the loss scaler, used in f16.
    #[must_use]
    pub fn scaler(mut self, config: ScalerConfig) -> Self {
        self.options.scaler = config;
        self
    }

    /// Checks everything and allocates the trainer.
    ///
    /// # Errors
    /// [`TrainerError`](crate::TrainerError): `WrongModel`, `Setting`, `Optim`, `Model` for weights that are not
    /// finite, `NotAvailable` for a device, precision or mode that this machine does not have.
    pub fn build(self) -> Result<Trainer<K>> {
        let Self { weights, session, options, .. } = self;
        let model = weights.config().clone();
        K::check(&model)?;
        session.validate(&model)?;
        let (beta1, beta2) = options.betas;
        let adamw = session.adamw()?.with_betas(beta1, beta2)?.with_eps(options.eps)?;
        options.step_opts.validate()?;
        if let Some(n) = options.threads.filter(|n| !(1..=MAX_THREADS).contains(n)) {
            let expected = "1 to 1,024, or absent for all cores";
            return Err(TrainerError::Setting { name: "threads", value: n.to_string(), expected });
        }
        let scaler = LossScaler::new(options.scaler)?;
        if options.input_gradient && model.lm.is_some() {
            let expected = "off for a language model: token ids have no gradient";
            return Err(TrainerError::Setting { name: "input_gradient", value: "true".to_owned(), expected });
        }
        weights.check_finite()?;
        let ctx = TrainerContext {
            table: weights.table().clone(),
            model,
            session,
            device: options.device.unwrap_or_else(Device::auto),
            dtype: options.dtype,
            gemm_mode: options.gemm_mode,
            input_gradient: options.input_gradient,
            recompute: options.recompute,
        };
        let engine = engine::open(EngineConfig {
            weights,
            ctx: ctx.clone(),
            reference_no_decay: options.reference_no_decay,
            threads: options.threads,
            scaler: if options.dtype.needs_scaler() { scaler } else { LossScaler::disabled() },
        })?;
        let mut core = Core::new(engine, ctx, adamw, options.reference_no_decay);
        core.set_step_opts(options.step_opts)?;
        core.skip_limit = options.skip_limit;
        Ok(Trainer::from_core(core))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backbone, LmTrainer, MambaConfig, MambaTrainer, ModelConfig};
    use mamba_model::LmHeadConfig;

    fn weights() -> MambaWeights {
        MambaWeights::init(&ModelConfig::backbone(MambaConfig::new(6, 1)), 1).unwrap()
    }

    fn builder() -> TrainerBuilder<Backbone> {
        MambaTrainer::builder(weights(), TrainSessionCfg::new(6, 1, 2)).device(Device::Cpu)
    }

    #[test]
    fn what_the_cpu_lacks_is_named_with_what_it_has() {
        for dtype in [WeightDtype::Tf32, WeightDtype::Bf16, WeightDtype::F16] {
            let error = builder().dtype(dtype).build().err().unwrap();
            let wanted = dtype.to_string();
            let ok = matches!(&error, TrainerError::NotAvailable { what: "dtype", requested, available }
                if *requested == wanted && available == "f32 on the cpu");
            assert!(ok, "{error}");
        }
        for mode in [GemmMode::CublasFast, GemmMode::CublasPedantic] {
            let error = builder().gemm_mode(mode).build().err().unwrap();
            assert!(matches!(error, TrainerError::NotAvailable { what: "gemm mode", .. }), "{error}");
        }
    }

    #[test]
    fn every_option_is_checked() {
        let bad = [
            ("threads", builder().threads(0)),
            ("threads", builder().threads(MAX_THREADS + 1)),
            ("lr", builder().lr(-1.0)),
            ("weight_decay", builder().weight_decay(f64::NAN)),
            ("beta1", builder().betas(1.0, 0.999)),
            ("beta2", builder().betas(0.9, f64::NAN)),
            ("eps", builder().eps(0.0)),
            ("clip_max_norm", builder().step_opts(StepOpts::new().with_clip_max_norm(f64::NAN))),
            (
                "init_scale",
                builder().scaler(ScalerConfig { init_scale: f32::NAN, ..ScalerConfig::default() }),
            ),
        ];
        for (name, builder) in bad {
            let error = builder.build().err().unwrap().to_string();
            assert!(error.contains(&format!("`{name}`")), "{name}: {error}");
        }
        let mut nan = weights();
        nan.set("norm_f", &[1.0, f32::NAN, 1.0, 1.0, 1.0, 1.0]).unwrap();
        let error = MambaTrainer::builder(nan, TrainSessionCfg::new(6, 1, 2)).build().err().unwrap();
        assert!(error.to_string().contains("norm_f"), "{error}");
        assert!(builder().build().is_ok());
    }

    #[test]
    fn what_cannot_be_allocated_is_an_error() {
        let weights = MambaWeights::init(&ModelConfig::backbone(MambaConfig::new(6, 64)), 1).unwrap();
        let session = TrainSessionCfg::new(6, 1 << 33, 2);
        let error = MambaTrainer::builder(weights, session).device(Device::Cpu).build().err().unwrap();
        assert!(matches!(error, TrainerError::OutOfMemory { bytes } if bytes > 1 << 47), "{error}");
    }

    #[test]
    fn backbones_and_language_models_have_their_own_trainers() {
        let error = LmTrainer::builder(weights(), 1, 2).build().err().unwrap();
        assert!(matches!(error, TrainerError::WrongModel { trainer: "LmTrainer", .. }), "{error}");
        let lm = ModelConfig::language_model(MambaConfig::new(6, 1), LmHeadConfig::new(5));
        let weights = MambaWeights::init(&lm, 1).unwrap();
        let session = TrainSessionCfg::new(6, 1, 2);
        let error = MambaTrainer::builder(weights.clone(), session).build().err().unwrap();
        assert!(matches!(error, TrainerError::WrongModel { trainer: "MambaTrainer", .. }), "{error}");
        let error = LmTrainer::builder(weights, 1, 2).input_gradient(true).build().err().unwrap();
        assert!(matches!(error, TrainerError::Setting { name: "input_gradient", .. }), "{error}");
    }
}
