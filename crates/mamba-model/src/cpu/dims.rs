use crate::config::{LmHeadConfig, ModelConfig};

/// Channels that are computed side by side.
pub(super) const LANES: usize = 16;
/// Channels of a group: of a tile, and of a scan task.
pub(super) const GROUP: usize = 64;
/// Blocks of [`LANES`] channels in a group.
pub(super) const GROUP_BLOCKS: usize = GROUP / LANES;
/// Tokens between two kept scan states; the backward pass replays this many at a time.
pub(super) const CHUNK: usize = 16;
/// Tokens of a row task, and of a tile.
pub(super) const ROWS: usize = 64;
/// Elements of a tile.
pub(super) const TILE: usize = ROWS * GROUP;
/// States that are computed side by side.
pub(super) const QUAD: usize = 4;

/// One value for each of [`LANES`] channels.
pub(super) type Lanes = [f32; LANES];
/// A token's channels of one group.
pub(super) type Channels = [f32; GROUP];

/// Sizes of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dims {
    pub batch: usize,
    pub seq: usize,
    /// `batch · seq`.
    pub tokens: usize,
    pub d_model: usize,
    pub d_inner: usize,
    /// Groups of `d_inner`.
    pub groups: usize,
    pub d_state: usize,
    /// `d_state` rounded up to whole quads.
    pub states: usize,
    pub d_conv: usize,
    pub dt_rank: usize,
    /// Columns of x_proj: `[dt | B | C]`.
    pub q_cols: usize,
    /// Kept scan states along the sequence.
    pub chunks: usize,
    pub input_width: usize,
    /// Rows of embedding and head; 0 for a bare backbone.
    pub vocab_rows: usize,
}

impl Dims {
    pub fn new(config: &ModelConfig, batch: usize, seq: usize) -> Self {
        let c = &config.backbone;
        Self {
            batch,
            seq,
            tokens: batch * seq,
            d_model: c.d_model,
            d_inner: c.d_inner(),
            groups: c.d_inner().div_ceil(GROUP),
            d_state: c.d_state,
            states: c.d_state.next_multiple_of(QUAD),
            d_conv: c.d_conv,
            dt_rank: c.dt_rank(),
            q_cols: c.x_proj_cols(),
            chunks: seq.div_ceil(CHUNK),
            input_width: c.input_width(),
            vocab_rows: config.lm.as_ref().map_or(0, LmHeadConfig::rows),
        }
    }

    /// Channels of whole groups, the length of every vector of channels.
    pub fn wide(&self) -> usize {
        self.groups * GROUP
    }

    /// Blocks of [`LANES`] channels in group `g`.
    pub fn blocks(&self, g: usize) -> usize {
        (self.d_inner - g * GROUP).div_ceil(LANES).min(GROUP_BLOCKS)
    }

    /// Elements of a group's scan state, `[blocks, states, lanes]`.
    pub fn group_state(&self) -> usize {
        GROUP_BLOCKS * self.states * LANES
    }

    /// Elements of a buffer `[group, tokens, 64]`.
    pub fn grouped(&self) -> usize {
        self.groups * self.tokens * GROUP
    }

    /// Row tasks of a pass.
    pub fn row_tasks(&self) -> usize {
        self.tokens.div_ceil(ROWS)
    }

    /// Elements of a tiled buffer with `cols` columns, `[row task, column group, 64, 64]`.
    pub fn tiled(&self, cols: usize) -> usize {
        self.row_tasks() * row_task(cols)
    }

    /// Copies the rows of row task `task` out of a `[group, tokens, 64]` buffer into its tiles.
    pub fn gather(&self, grouped: &[f32], task: usize, tiles: &mut [f32]) {
        let (first, rows) = (task * ROWS, ROWS.min(self.tokens - task * ROWS));
        let groups = grouped.chunks_exact(self.tokens * GROUP);
        for (tile, group) in tiles.chunks_exact_mut(TILE).zip(groups) {
            tile[..rows * GROUP].copy_from_slice(&group[first * GROUP..][..rows * GROUP]);
        }
    }
}

/// Elements of one row task of a tiled buffer.
pub(super) fn row_task(cols: usize) -> usize {
    cols.div_ceil(GROUP) * TILE
}

/// Where row `m` of column group `g` starts in a tiled buffer of `groups` column groups.
#[inline(always)]
pub(super) fn tile_row(m: usize, g: usize, groups: usize) -> usize {
    ((m / ROWS) * groups + g) * TILE + (m % ROWS) * GROUP
}

/// The [`GROUP`] elements from `at` on.
#[inline(always)]
pub(super) fn channels(x: &[f32], at: usize) -> &Channels {
    match x[at..].first_chunk() {
        Some(v) => v,
        None => &[0.0; GROUP],
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

/// Sum of the lanes, by halves.
#[inline(always)]
pub(super) fn fold(x: &Lanes) -> f32 {
    let a: [f32; 8] = std::array::from_fn(|i| x[i] + x[i + 8]);
    let b: [f32; 4] = std::array::from_fn(|i| a[i] + a[i + 4]);
    (b[0] + b[2]) + (b[1] + b[3])
}
