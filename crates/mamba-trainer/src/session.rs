//! What a training session is: sizes, precision, device.

use crate::error::{Result, TrainerError};
use mamba_model::ModelConfig;
use mamba_optim::AdamWConfig;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Sizes and rates of one training session.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainSessionCfg {
    /// Width of the input per token: the model's `input_dim`, or its `d_model` without input projection.
    pub input_dim: usize,
    /// Sequences per window (B).
    pub batch: usize,
    /// Tokens per sequence and window (T).
    pub seq_len: usize,
    /// Learning rate of the first step; finite and above 0.
    pub lr: f64,
    /// Decoupled weight decay; finite, at least 0.
    pub weight_decay: f64,
}

impl TrainSessionCfg {
    /// Learning rate 1e-3, weight decay 1e-2.
    pub fn new(input_dim: usize, batch: usize, seq_len: usize) -> Self {
        Self { input_dim, batch, seq_len, lr: 1e-3, weight_decay: 1e-2 }
    }

    /// Another learning rate.
    #[must_use]
    pub fn with_lr(mut self, lr: f64) -> Self {
        self.lr = lr;
        self
    }

    /// Another weight decay.
    #[must_use]
    pub fn with_weight_decay(mut self, weight_decay: f64) -> Self {
        self.weight_decay = weight_decay;
        self
    }

    /// Checks every field against a model.
    ///
    /// # Errors
    /// [`TrainerError::Setting`] or [`TrainerError::Optim`] naming the first field that does not fit.
    pub fn validate(&self, model: &ModelConfig) -> Result<()> {
        let width = model.backbone.input_width();
        if self.input_dim != width {
            return Err(TrainerError::Setting {
                name: "input_dim",
                value: format!("{} (the model takes {width})", self.input_dim),
                expected: "the model's input width",
            });
        }
        at_least_one("batch", self.batch)?;
        at_least_one("seq_len", self.seq_len)?;
        let widest = width.max(2 * model.backbone.d_inner()).max(model.backbone.x_proj_cols());
        let elements = self.batch.checked_mul(self.seq_len).and_then(|n| n.checked_mul(widest));
        if elements.is_none_or(|n| n > MAX_ELEMENTS) {
            return Err(TrainerError::Setting {
                name: "batch · seq_len",
                value: format!("{} · {}", self.batch, self.seq_len),
                expected: "small enough that no activation passes 2^40 elements",
            });
        }
        self.adamw().map(|_| ())
    }

    /// AdamW with these rates and the default betas and epsilon.
    ///
    /// # Errors
    /// [`TrainerError::Optim`] for a rate out of range.
    pub fn adamw(&self) -> Result<AdamWConfig> {
        Ok(AdamWConfig::default().with_lr(self.lr)?.with_weight_decay(self.weight_decay)?)
    }
}

/// Elements of the largest activation.
const MAX_ELEMENTS: usize = 1 << 40;

fn at_least_one(name: &'static str, value: usize) -> Result<()> {
    match value {
        0 => Err(TrainerError::Setting { name, value: "0".to_owned(), expected: "at least 1" }),
        _ => Ok(()),
    }
}

/// Storage of the bulk weights and of their products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WeightDtype {
    /// Exact f32 products.
    F32,
    /// f32 storage, tensor-core products rounded once to TF32.
    Tf32,
    /// bf16 shadow of an f32 master.
    Bf16,
    /// f16 shadow of an f32 master, with a dynamic loss scale.
    F16,
}

impl WeightDtype {
    /// Whether training in this precision needs a loss scale.
    pub fn needs_scaler(self) -> bool {
        self == Self::F16
    }
}

impl fmt::Display for WeightDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        })
    }
}

impl FromStr for WeightDtype {
    type Err = TrainerError;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "f32" => Ok(Self::F32),
            "tf32" => Ok(Self::Tf32),
            "bf16" => Ok(Self::Bf16),
            "f16" => Ok(Self::F16),
            _ => Err(TrainerError::Parse {
                what: "dtype",
                given: text.to_owned(),
                expected: "f32, tf32, bf16 or f16",
            }),
        }
    }
}

/// Which matrix products run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum GemmMode {
    /// Own kernels: the same inputs give the same bits, whatever the machine's size.
    #[default]
    Deterministic,
    /// cuBLASLt with its fastest algorithms.
    CublasFast,
    /// cuBLASLt in its pedantic mode.
    CublasPedantic,
}

impl fmt::Display for GemmMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deterministic => "deterministic",
            Self::CublasFast => "cublas-fast",
            Self::CublasPedantic => "cublas-pedantic",
        })
    }
}

impl FromStr for GemmMode {
    type Err = TrainerError;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "deterministic" => Ok(Self::Deterministic),
            "cublas-fast" => Ok(Self::CublasFast),
            "cublas-pedantic" => Ok(Self::CublasPedantic),
            _ => Err(TrainerError::Parse {
                what: "gemm mode",
                given: text.to_owned(),
                expected: "deterministic, cublas-fast or cublas-pedantic",
            }),
        }
    }
}

/// Where the training runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Device {
    /// The CPU engine.
    Cpu,
    /// The NVIDIA GPU of this ordinal.
    Cuda(usize),
}

impl Device {
    /// The best device of this machine: its first GPU where there is a usable one, else the CPU.
    pub fn auto() -> Self {
        match mamba_cuda::devices() {
            Ok(devices) if !devices.is_empty() => Self::Cuda(0),
            _ => Self::Cpu,
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// `auto` (see [`Device::auto`]), `cpu`, `cuda` (the first GPU) or `cuda:N`.
impl FromStr for Device {
    type Err = TrainerError;

    fn from_str(text: &str) -> Result<Self> {
        let unknown = || TrainerError::Parse {
            what: "device",
            given: text.to_owned(),
            expected: "auto, cpu, cuda or cuda:N",
        };
        match text {
            "auto" => Ok(Self::auto()),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let ordinal = text.strip_prefix("cuda:").ok_or_else(unknown)?;
                let digits = !ordinal.is_empty() && ordinal.bytes().all(|b| b.is_ascii_digit());
                match (digits, ordinal.parse()) {
                    (true, Ok(n)) => Ok(Self::Cuda(n)),
                    _ => Err(unknown()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mamba_model::MambaConfig;

    #[test]
    fn names_parse_back() {
        for device in [Device::Cpu, Device::Cuda(0), Device::Cuda(17)] {
            assert_eq!(device.to_string().parse::<Device>().unwrap(), device);
        }
        for bad in
            ["", "gpu", "cuda:", "cuda:-1", "cuda:+1", "cuda:1x", "CPU", "cuda:99999999999999999999999"]
        {
            let err = bad.parse::<Device>().unwrap_err().to_string();
            assert!(err.contains("cuda:N"), "{err}");
        }
        for dtype in [WeightDtype::F32, WeightDtype::Tf32, WeightDtype::Bf16, WeightDtype::F16] {
            assert_eq!(dtype.to_string().parse::<WeightDtype>().unwrap(), dtype);
        }
        for mode in [GemmMode::Deterministic, GemmMode::CublasFast, GemmMode::CublasPedantic] {
            assert_eq!(mode.to_string().parse::<GemmMode>().unwrap(), mode);
        }
        assert!("fp32".parse::<WeightDtype>().is_err() && "fast".parse::<GemmMode>().is_err());
    }

    #[test]
    fn every_field_is_checked() {
        let model = ModelConfig::backbone(MambaConfig::new(8, 1).with_input_dim(3));
        let good = TrainSessionCfg::new(3, 2, 5);
        assert_eq!((good.lr, good.weight_decay), (1e-3, 1e-2));
        good.validate(&model).unwrap();
        let bad = [
            ("input_dim", TrainSessionCfg { input_dim: 8, ..good }),
            ("batch", TrainSessionCfg { batch: 0, ..good }),
            ("seq_len", TrainSessionCfg { seq_len: 0, ..good }),
            ("batch · seq_len", TrainSessionCfg { batch: usize::MAX, seq_len: 2, ..good }),
            ("lr", good.with_lr(0.0)),
            ("lr", good.with_lr(f64::NAN)),
            ("lr", good.with_lr(f64::INFINITY)),
            ("weight_decay", good.with_weight_decay(-1e-9)),
            ("weight_decay", good.with_weight_decay(f64::NAN)),
        ];
        for (field, session) in bad {
            match session.validate(&model) {
                Err(TrainerError::Setting { name, .. }) => assert_eq!(name, field),
                Err(TrainerError::Optim(mamba_optim::OptimError::Setting { name, .. })) => {
                    assert_eq!(name, field);
                }
                other => panic!("{field}: {other:?}"),
            }
        }
        good.with_weight_decay(0.0).validate(&model).unwrap();
    }
}
