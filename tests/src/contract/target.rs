use mamba_model::rng::SplitMix64;
use mamba_model::{IGNORE_INDEX, LmHeadConfig, MambaConfig, MambaWeights, ModelConfig};
use mamba_optim::ScalerConfig;
use mamba_trainer::{
    Backbone, Device, GemmMode, LanguageModel, LmTrainer, MambaTrainer, ModelKind, TokenBatch,
    TrainSessionCfg, Trainer, TrainerBuilder, WeightDtype,
};

/// Where a case runs.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    pub device: Device,
    pub dtype: WeightDtype,
    pub mode: GemmMode,
}

pub const BATCH: usize = 2;
pub const SEQ_LEN: usize = 7;
pub const INPUT_DIM: usize = 5;
pub const D_MODEL: usize = 9;
pub const VOCAB: usize = 11;
const TOKENS: usize = BATCH * SEQ_LEN;

impl Target {
    pub const CPU: Self =
        Self { device: Device::Cpu, dtype: WeightDtype::F32, mode: GemmMode::Deterministic };

    /// Odd sizes throughout.
    pub fn backbone_config() -> MambaConfig {
        MambaConfig { d_state: 3, ..MambaConfig::new(D_MODEL, 2).with_input_dim(INPUT_DIM) }
    }

    pub fn backbone_builder(&self) -> TrainerBuilder<Backbone> {
        let model = ModelConfig::backbone(Self::backbone_config());
        self.builder_of(MambaWeights::init(&model, 1).unwrap())
    }

    pub fn builder_of(&self, weights: MambaWeights) -> TrainerBuilder<Backbone> {
        let session = TrainSessionCfg::new(INPUT_DIM, BATCH, SEQ_LEN);
        let builder = MambaTrainer::builder(weights, session).device(self.device).dtype(self.dtype);
        builder.gemm_mode(self.mode).scaler(Self::scaler())
    }

    /// A loss scale at which the cases' upstream gradients, of order 1, do not overflow in f16.
    fn scaler() -> ScalerConfig {
        ScalerConfig { init_scale: 256.0, ..ScalerConfig::default() }
    }

    pub fn backbone(&self) -> MambaTrainer {
        self.backbone_builder().build().unwrap()
    }

    pub fn lm_weights(tied: bool) -> MambaWeights {
        let backbone = MambaConfig { d_state: 3, ..MambaConfig::new(D_MODEL, 2) };
        let head = LmHeadConfig { tied, pad_vocab_size_multiple: 4, ..LmHeadConfig::new(VOCAB) };
        MambaWeights::init(&ModelConfig::language_model(backbone, head), 2).unwrap()
    }

    pub fn lm_builder(&self, weights: MambaWeights) -> TrainerBuilder<LanguageModel> {
        let builder = LmTrainer::builder(weights, BATCH, SEQ_LEN).device(self.device).dtype(self.dtype);
        builder.gemm_mode(self.mode).scaler(Self::scaler())
    }

    pub fn lm(&self, tied: bool) -> LmTrainer {
        self.lm_builder(Self::lm_weights(tied)).build().unwrap()
    }
}

/// A backbone's window and its upstream gradient.
#[derive(Debug, Clone)]
pub struct Batch {
    pub input: Vec<f32>,
    pub d_temporal: Vec<f32>,
}

impl Batch {
    pub fn new(seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed, "contract batch");
        let mut draw = |n| (0..n).map(|_| rng.normal() as f32).collect();
        Self { input: draw(TOKENS * INPUT_DIM), d_temporal: draw(TOKENS * D_MODEL) }
    }

    /// The same window with one bad element in the upstream gradient.
    pub fn poisoned(seed: u64, value: f32) -> Self {
        let mut batch = Self::new(seed);
        batch.d_temporal[TOKENS * D_MODEL / 2] = value;
        batch
    }

    pub fn temporal() -> Vec<f32> {
        vec![0.0; TOKENS * D_MODEL]
    }
}

/// A language model's window.
#[derive(Debug, Clone)]
pub struct Tokens {
    pub inputs: Vec<u32>,
    pub targets: Vec<i32>,
    pub weights: Option<Vec<f32>>,
    pub reset: Option<Vec<u8>>,
}

impl Tokens {
    pub fn new(seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed, "contract tokens");
        let mut draw = || (0..TOKENS).map(|_| (rng.next_u64() % VOCAB as u64) as u32).collect::<Vec<_>>();
        let (inputs, targets) = (draw(), draw());
        Self { inputs, targets: targets.iter().map(|&t| t as i32).collect(), weights: None, reset: None }
    }

    /// Only the first `n` targets count.
    pub fn counting(mut self, n: usize) -> Self {
        self.targets[n..].fill(IGNORE_INDEX);
        self
    }

    pub fn batch(&self) -> TokenBatch<'_> {
        TokenBatch {
            inputs: &self.inputs,
            targets: &self.targets,
            weights: self.weights.as_deref(),
            reset: self.reset.as_deref(),
        }
    }
}

/// Everything that a caller can see of a trainer, bit for bit.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub parts: Vec<(&'static str, Vec<u32>)>,
    pub flags: Vec<(&'static str, String)>,
}

/// Takes a snapshot; changes nothing.
pub fn snapshot<K: ModelKind>(t: &mut Trainer<K>) -> Snapshot {
    let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let adamw = t.optimizer_state().unwrap();
    let recurrence = t.recurrent_state().unwrap();
    let parts = vec![
        ("weights", bits(t.snapshot_master().unwrap().arena())),
        ("m", bits(&adamw.m)),
        ("v", bits(&adamw.v)),
        ("conv", bits(&recurrence.conv)),
        ("ssm", bits(&recurrence.ssm)),
        ("grads", bits(&t.grad_arena().unwrap())),
    ];
    let input_gradient = t.input_gradient().map(|g| bits(&g)).map_err(|e| e.to_string());
    let flags = vec![
        ("step", adamw.step.to_string()),
        ("lr", t.lr().to_bits().to_string()),
        ("step_opts", format!("{:?}", t.step_opts())),
        ("reference_no_decay", t.reference_no_decay().to_string()),
        ("window", format!("{:?}", t.window())),
        ("pending", t.has_pending_forward().to_string()),
        ("graph", t.has_graph().to_string()),
        ("scaler", format!("{:?}", t.scaler_state().unwrap())),
        ("skips", format!("{:?}", t.skips().unwrap())),
        ("norms", format!("{:?}", t.norm_history().unwrap())),
        ("outcome", format!("{:?}", t.last_outcome().unwrap())),
        ("input gradient", format!("{input_gradient:?}")),
    ];
    Snapshot { parts, flags }
}

/// Compares two snapshots, naming the first coordinate that differs.
pub fn assert_same(a: &Snapshot, b: &Snapshot, what: &str) {
    assert_same_but(a, b, &[], what);
}

/// [`assert_same`] without the fields named in `but`.
pub fn assert_same_but(a: &Snapshot, b: &Snapshot, but: &[&str], what: &str) {
    for ((name, x), (_, y)) in a.parts.iter().zip(&b.parts) {
        let first = x.iter().zip(y).position(|(x, y)| x != y);
        if let Some(i) = first.filter(|_| !but.contains(name)) {
            let (x, y) = (f32::from_bits(x[i]), f32::from_bits(y[i]));
            panic!("{what}: `{name}` differs first at {i}: {x:e} and {y:e}");
        }
    }
    for ((name, x), (_, y)) in a.flags.iter().zip(&b.flags) {
        assert!(but.contains(name) || x == y, "{what}: `{name}` is {x} and {y}");
    }
}
