//! Single operations of the engine on plain row-major slices, for checks and for other models.
//!
//! The loops are those of a whole pass, so a result here says what the engine computes there; only the copying in and
//! out of tiles is added. One thread. Formulas are those of [`oracle`](crate::oracle), in f32.
//!
//! ```
//! use mamba_model::cpu::ops::CausalConv;
//!
//! let x = [1.0, 2.0, 3.0];
//! let (weight, state) = ([0.5, 1.0], [4.0]);
//! let conv = CausalConv {
//!     batch: 1,
//!     seq_len: 3,
//!     channels: 1,
//!     width: 2,
//!     x: &x,
//!     weight: &weight,
//!     bias: None,
//!     state: &state,
//!     reset: None,
//! };
//! assert_eq!(conv.forward()?.state, [3.0]);
//! assert_eq!(conv.backward(&[0.0; 3])?.weight, [0.0, 0.0]);
//! # Ok::<(), mamba_model::ModelError>(())
//! ```

mod conv;
mod pointwise;
mod scan;

pub use conv::{CausalConv, ConvGradients, ConvOutput};
pub use pointwise::{
    NormGradients, NormOutput, rmsnorm, rmsnorm_backward, silu, silu_backward, softplus, softplus_backward,
};
pub use scan::{ScanGradients, ScanOutput, SelectiveScan};

use super::dims::{Dims, GROUP, tile_row};
use crate::config::{MambaConfig, ModelConfig};
use crate::error::{ModelError, Result};

/// Sizes of a pass over `channels` channels of one layer.
fn dims((batch, seq_len): (usize, usize), channels: usize, states: usize, width: usize) -> Result<Dims> {
    for (field, value) in [("batch", batch), ("seq_len", seq_len)] {
        if value == 0 {
            return Err(ModelError::Config { field, value: value.to_string(), expected: "at least 1" });
        }
    }
    let mut config = MambaConfig::new(channels, 1);
    (config.expand, config.d_state, config.d_conv, config.dt_rank) = (1, states, width, Some(1));
    config.validate()?;
    Ok(Dims::new(&ModelConfig::backbone(config), batch, seq_len))
}

/// Copies `[tokens, d_inner]` into the tiles of `groups` column groups, from column group `first` on.
fn to_tiles(d: &Dims, x: &[f32], tiles: &mut [f32], (first, groups): (usize, usize)) {
    for (m, row) in x.chunks_exact(d.d_inner).enumerate() {
        for (g, piece) in row.chunks(GROUP).enumerate() {
            tiles[tile_row(m, first + g, groups)..][..piece.len()].copy_from_slice(piece);
        }
    }
}

/// The inverse of [`to_tiles`], for tiles of `d_inner` columns.
fn from_tiles(d: &Dims, tiles: &[f32]) -> Vec<f32> {
    let mut x = vec![0.0; d.tokens * d.d_inner];
    for (m, row) in x.chunks_exact_mut(d.d_inner).enumerate() {
        for (g, piece) in row.chunks_mut(GROUP).enumerate() {
            piece.copy_from_slice(&tiles[tile_row(m, g, d.groups)..][..piece.len()]);
        }
    }
    x
}

/// The given mask, or one without any document start.
fn mask(d: &Dims, reset: Option<&[u8]>) -> Result<Vec<u8>> {
    let Some(reset) = reset else { return Ok(vec![0; d.tokens]) };
    crate::input::check_len("reset", reset.len(), d.tokens, "[batch, seq_len]")?;
    Ok(reset.to_vec())
}
