use crate::config::{LmHeadConfig, ModelConfig};

/// Channels that are computed side by side.
pub(super) const LANES: usize = 16;
/// Blocks of [`LANES`] channels in a group.
pub(super) const GROUP_BLOCKS: usize = 4;
/// Channels of a scan task.
pub(super) const GROUP: usize = LANES * GROUP_BLOCKS;
/// Tokens between two kept scan states; the backward pass replays this many at a time.
pub(super) const CHUNK: usize = 16;
/// Tokens of a row task.
pub(super) const ROWS: usize = 64;
/// States that are computed side by side.
pub(super) const QUAD: usize = 4;

/// One value for each of [`LANES`] channels.
pub(super) type Lanes = [f32; LANES];

/// Sizes of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dims {
    pub batch: usize,
    pub seq: usize,
    /// `batch · seq`.
    pub tokens: usize,
    pub d_model: usize,
    pub d_inner: usize,
    /// `d_inner` rounded up to whole vectors: the stride of every `[tokens, d_inner]` buffer.
    pub width: usize,
    pub d_state: usize,
    /// `d_state` rounded up to whole quads.
    pub states: usize,
    pub d_conv: usize,
    pub dt_rank: usize,
    /// Columns of x_proj: `[dt | B | C]`.
    pub q_cols: usize,
    /// Groups of [`GROUP`] channels.
    pub groups: usize,
    /// Kept scan states along the sequence.
    pub chunks: usize,
    pub input_width: usize,
    /// Rows of embedding and head; 0 for a bare backbone.
    pub vocab_rows: usize,
}

impl Dims {
    pub fn new(config: &ModelConfig, batch: usize, seq: usize) -> Self {
        let c = &config.backbone;
        let width = c.d_inner().next_multiple_of(LANES);
        Self {
            batch,
            seq,
            tokens: batch * seq,
            d_model: c.d_model,
            d_inner: c.d_inner(),
            width,
            d_state: c.d_state,
            states: c.d_state.next_multiple_of(QUAD),
            d_conv: c.d_conv,
            dt_rank: c.dt_rank(),
            q_cols: c.x_proj_cols(),
            groups: width.div_ceil(GROUP),
            chunks: seq.div_ceil(CHUNK),
            input_width: c.input_width(),
            vocab_rows: config.lm.as_ref().map_or(0, LmHeadConfig::rows),
        }
    }

    /// Blocks of [`LANES`] channels in group `g`.
    pub fn blocks(&self, g: usize) -> usize {
        (self.width / LANES - g * GROUP_BLOCKS).min(GROUP_BLOCKS)
    }

    /// Elements of a group's scan state, `[blocks, states, lanes]`.
    pub fn group_state(&self) -> usize {
        GROUP_BLOCKS * self.states * LANES
    }

    /// Elements of a buffer `[batch, group, seq, 64]`.
    pub fn grouped(&self) -> usize {
        self.batch * self.groups * self.seq * GROUP
    }

    /// Row tasks of a pass.
    pub fn row_tasks(&self) -> usize {
        self.tokens.div_ceil(ROWS)
    }

    /// Copies `rows` rows from `first` on out of a `[batch, group, seq, 64]` buffer into rows of `out`.
    pub fn gather(&self, grouped: &[f32], first: usize, out: &mut [f32], stride: usize) {
        for (i, row) in out.chunks_mut(stride).enumerate() {
            let (b, t) = ((first + i) / self.seq, (first + i) % self.seq);
            for (g, part) in row[..self.width].chunks_mut(GROUP).enumerate() {
                let at = ((b * self.groups + g) * self.seq + t) * GROUP;
                part.copy_from_slice(&grouped[at..at + part.len()]);
            }
        }
    }
}

/// The first [`LANES`] elements from `at` on.
#[inline(always)]
pub(super) fn lanes(x: &[f32], at: usize) -> &Lanes {
    match x[at..].first_chunk() {
        Some(v) => v,
        None => &[0.0; LANES],
    }
}
