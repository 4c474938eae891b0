//! What a model is: sizes and options. Every field is saved with the weights; unknown fields are refused.

use crate::error::{ModelError, Result};
use serde::{Deserialize, Serialize};

/// Largest `d_state` that the scan kernels hold.
pub const MAX_D_STATE: usize = 256;
/// Largest `d_conv`, the width of the causal convolution.
pub const MAX_D_CONV: usize = 32;

/// A Mamba-1 backbone: optional input projection, `n_layers` residual blocks, final RMSNorm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MambaConfig {
    /// Width of the residual stream.
    pub d_model: usize,
    /// Number of blocks.
    pub n_layers: usize,
    /// States per channel of the selective scan, at most [`MAX_D_STATE`].
    pub d_state: usize,
    /// Width of the causal depthwise convolution.
    pub d_conv: usize,
    /// `d_inner = expand · d_model`.
    pub expand: usize,
    /// Rank of the Δ projection; `None` is `ceil(d_model / 16)`.
    pub dt_rank: Option<usize>,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether `in_proj` and `out_proj` have biases.
    pub proj_bias: bool,
    /// Epsilon of every RMSNorm.
    pub rms_norm_eps: f64,
    /// Width of the input of the input projection; `None`: no projection, the input is `[B, T, d_model]`.
    pub input_dim: Option<usize>,
}

impl MambaConfig {
    /// The defaults of the public Mamba-1 checkpoints at this width and depth.
    pub fn new(d_model: usize, n_layers: usize) -> Self {
        Self {
            d_model,
            n_layers,
            d_state: 16,
            d_conv: 4,
            expand: 2,
            dt_rank: None,
            conv_bias: true,
            proj_bias: false,
            rms_norm_eps: 1e-5,
            input_dim: None,
        }
    }

    /// Adds an input projection `[input_dim, d_model]` with bias.
    #[must_use]
    pub fn with_input_dim(mut self, input_dim: usize) -> Self {
        self.input_dim = Some(input_dim);
        self
    }

    /// `expand · d_model`, the width inside a block.
    pub fn d_inner(&self) -> usize {
        self.expand * self.d_model
    }

    /// Rank of the Δ projection, resolved.
    pub fn dt_rank(&self) -> usize {
        self.dt_rank.unwrap_or_else(|| self.d_model.div_ceil(16))
    }

    /// The same model with `dt_rank` absent where it is the default one.
    #[must_use]
    pub(crate) fn with_plain_rank(mut self) -> Self {
        self.dt_rank = self.dt_rank.filter(|&r| r != self.d_model.div_ceil(16));
        self
    }

    /// Columns of `x_proj`: `[dt | B | C]`.
    pub fn x_proj_cols(&self) -> usize {
        self.dt_rank() + 2 * self.d_state
    }

    /// Width of the model's input per token.
    pub fn input_width(&self) -> usize {
        self.input_dim.unwrap_or(self.d_model)
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`ModelError::Config`] naming the first field that is out of range.
    pub fn validate(&self) -> Result<()> {
        in_range("d_model", self.d_model, 1, 1 << 20, "1 to 1,048,576")?;
        in_range("n_layers", self.n_layers, 1, 4096, "1 to 4,096")?;
        in_range("d_state", self.d_state, 1, MAX_D_STATE, "1 to 256")?;
        in_range("d_conv", self.d_conv, 1, MAX_D_CONV, "1 to 32")?;
        in_range("expand", self.expand, 1, 64, "1 to 64")?;
        if let Some(rank) = self.dt_rank {
            in_range("dt_rank", rank, 1, 1 << 20, "1 to 1,048,576")?;
        }
        if let Some(dim) = self.input_dim {
            in_range("input_dim", dim, 1, 1 << 24, "1 to 16,777,216, or absent")?;
        }
        let eps = self.rms_norm_eps;
        if !(eps.is_finite() && eps > 0.0 && eps <= 1.0) {
            return Err(ModelError::Config {
                field: "rms_norm_eps",
                value: eps.to_string(),
                expected: "finite, above 0 and at most 1",
            });
        }
        Ok(())
    }
}

/// Embedding and head that turn a backbone into a language model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LmHeadConfig {
    /// Tokens in the vocabulary; ids and targets are below it.
    pub vocab_size: usize,
    /// The embedding has `vocab_size` rows rounded up to a multiple of this.
    pub pad_vocab_size_multiple: usize,
    /// Whether the head is the embedding, transposed.
    pub tied: bool,
}

impl LmHeadConfig {
    /// A tied head without padding.
    pub fn new(vocab_size: usize) -> Self {
        Self { vocab_size, pad_vocab_size_multiple: 1, tied: true }
    }

    /// Rows of the embedding and of the head, padding included. The padding columns take part in the
    /// softmax, as in the public checkpoints.
    pub fn rows(&self) -> usize {
        self.vocab_size.next_multiple_of(self.pad_vocab_size_multiple.max(1))
    }

    fn validate(&self) -> Result<()> {
        in_range("vocab_size", self.vocab_size, 1, 1 << 24, "1 to 16,777,216")?;
        in_range("pad_vocab_size_multiple", self.pad_vocab_size_multiple, 1, 1 << 16, "1 to 65,536")
    }
}

/// A whole model: a backbone, and for a language model its embedding and head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// The blocks.
    pub backbone: MambaConfig,
    /// Embedding and head; `None` for a bare backbone.
    pub lm: Option<LmHeadConfig>,
}

impl ModelConfig {
    /// A bare backbone.
    pub fn backbone(backbone: MambaConfig) -> Self {
        Self { backbone, lm: None }
    }

    /// A language model. The backbone must have no input projection: the embedding feeds it.
    pub fn language_model(backbone: MambaConfig, lm: LmHeadConfig) -> Self {
        Self { backbone, lm: Some(lm) }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`ModelError::Config`] naming the first field that is out of range.
    pub fn validate(&self) -> Result<()> {
        self.backbone.validate()?;
        if let Some(lm) = &self.lm {
            lm.validate()?;
            if let Some(dim) = self.backbone.input_dim {
                return Err(ModelError::Config {
                    field: "input_dim",
                    value: dim.to_string(),
                    expected: "absent in a language model: the embedding feeds the blocks",
                });
            }
        }
        Ok(())
    }
}

fn in_range(field: &'static str, v: usize, lo: usize, hi: usize, expected: &'static str) -> Result<()> {
    if (lo..=hi).contains(&v) {
        return Ok(());
    }
    Err(ModelError::Config { field, value: v.to_string(), expected })
}
