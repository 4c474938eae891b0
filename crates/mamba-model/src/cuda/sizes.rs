use crate::config::{LmHeadConfig, ModelConfig};
use crate::error::{ModelError, Result};
use mamba_kernels::conv::{ConvShape, MAX_WIDTH};
use mamba_kernels::norm::MAX_DIM;
use mamba_kernels::scan::ScanShape;

/// Elements of the logits that exist at a time.
const LOGITS: usize = 100 << 20;
/// Rows of logits come in multiples of a product's tile.
const LOGIT_ROWS: usize = 128;

/// Sizes of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    pub batch: usize,
    pub seq_len: usize,
    /// batch · seq_len.
    pub tokens: usize,
    pub layers: usize,
    pub d_model: usize,
    pub d_inner: usize,
    pub d_state: usize,
    pub d_conv: usize,
    pub dt_rank: usize,
    /// dt_rank + 2 · d_state.
    pub x_cols: usize,
    pub input_width: usize,
    /// Rows of embedding and head; 0 in a bare backbone.
    pub vocab_rows: usize,
}

impl Sizes {
    pub fn new(config: &ModelConfig, batch: usize, seq_len: usize) -> Result<Self> {
        config.validate()?;
        let c = &config.backbone;
        let sizes = Self {
            batch,
            seq_len,
            tokens: batch.saturating_mul(seq_len),
            layers: c.n_layers,
            d_model: c.d_model,
            d_inner: c.d_inner(),
            d_state: c.d_state,
            d_conv: c.d_conv,
            dt_rank: c.dt_rank(),
            x_cols: c.x_proj_cols(),
            input_width: c.input_width(),
            vocab_rows: config.lm.as_ref().map_or(0, LmHeadConfig::rows),
        };
        let range = |field, value: usize, most: usize, expected| match (1..=most).contains(&value) {
            true => Ok(()),
            false => Err(ModelError::Config { field, value: value.to_string(), expected }),
        };
        range("d_conv", sizes.d_conv, MAX_WIDTH, "1 to 8 on a GPU")?;
        range("d_model", sizes.d_model, MAX_DIM, "1 to 8,192 on a GPU")?;
        range("batch", batch, (1 << 31) - 1, "1 to 2^31 - 1")?;
        range("seq_len", seq_len, (1 << 31) - 1, "1 to 2^31 - 1")?;
        range("batch · seq_len", sizes.tokens, (1 << 31) - 1, "below 2^31 on a GPU")?;
        Ok(sizes)
    }

    /// The convolution: x is the left half of the input projection.
    pub fn conv(&self) -> ConvShape {
        let Self { batch, seq_len, d_inner: channels, d_conv: width, .. } = *self;
        ConvShape { batch, seq_len, channels, width, ld_x: 2 * channels, ld_dx: 2 * channels }
    }

    /// The scan: z is the right half of the input projection, B and C are columns of x_proj's result.
    pub fn scan(&self) -> ScanShape {
        let Self { batch, seq_len, d_inner: channels, d_state: states, x_cols: ld_bc, .. } = *self;
        ScanShape { batch, seq_len, channels, states, ld_u: channels, ld_z: 2 * channels, ld_bc }
    }

    /// Tokens whose logits exist at a time: depends on the vocabulary alone, but for short windows.
    pub fn logit_rows(&self) -> usize {
        let rows = LOGITS / self.vocab_rows.max(1) / LOGIT_ROWS * LOGIT_ROWS;
        rows.max(LOGIT_ROWS).min(self.tokens)
    }
}
