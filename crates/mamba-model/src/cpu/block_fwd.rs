//! The phases of a forward pass. Each is one parallel loop; a task owns its rows, or its (batch row, group).

use super::buffer::Buffer;
use super::conv::{ConvFwd, ConvInput};
use super::derived::LayerWeights;
use super::dims::{Dims, GROUP, ROWS, row_task};
use super::gemm::{Layout, Out, Packed, Rows};
use super::norm::NormFwd;
use super::pool::Slots;
use super::scan_bwd::ScanBwdScratch;
use super::scan_fwd::{ScanFwd, ScanFwdScratch, ScanInput, StepSize};
use rayon::prelude::*;

/// Working memory of one thread.
#[derive(Debug)]
pub(super) struct Scratch {
    /// `[ROWS, d_model]`.
    pub narrow: Buffer,
    pub scan_fwd: Box<ScanFwdScratch>,
    pub scan_bwd: Option<ScanBwdScratch>,
}

impl Scratch {
    pub fn new(d: &Dims, train: bool) -> Self {
        Self {
            narrow: Buffer::zeros(ROWS * d.d_model),
            scan_fwd: Box::new(ScanFwdScratch::new(d.states)),
            scan_bwd: train.then(|| ScanBwdScratch::new(d.states)),
        }
    }

    pub fn len(&self) -> usize {
        let scan = self.scan_bwd.as_ref().map_or(0, ScanBwdScratch::len);
        self.narrow.len() + self.scan_fwd.len() + scan
    }
}

/// A block's activations.
#[derive(Debug, Default)]
pub(super) struct Activations {
    /// Tiled `[tokens, x | z]`.
    pub xz: Buffer,
    /// After convolution and silu, tiled `[tokens, d_inner]`.
    pub u: Buffer,
    /// `[tokens, dt | B | C]`.
    pub q: Buffer,
    /// Step sizes, tiled `[tokens, d_inner]`.
    pub delta: Buffer,
}

impl Activations {
    pub fn resize(&mut self, d: &Dims) {
        self.xz.resize(2 * d.tiled(d.d_inner));
        self.u.resize(d.tiled(d.d_inner));
        self.q.resize(d.tokens * d.q_cols);
        self.delta.resize(d.tiled(d.d_inner));
    }

    pub fn len(&self) -> usize {
        self.xz.capacity() + self.u.capacity() + self.q.capacity() + self.delta.capacity()
    }
}

/// What came out of the block before: the residual it read, its gated output, its out_proj.
pub(super) struct Previous<'a> {
    pub residual: &'a [f32],
    /// `[group, tokens, 64]`.
    pub gated: &'a [f32],
    pub out_proj: &'a Packed,
    pub out_proj_bias: Option<&'a [f32]>,
}

/// What the normalised rows become.
pub(super) enum Next<'a> {
    /// The next block's `[x | z]`.
    Block { weights: &'a LayerWeights, norm: &'a [f32], xz: &'a mut [f32] },
    /// The model's output.
    Temporal { norm: &'a [f32], temporal: &'a mut [f32] },
}

/// Residual + out_proj of the block before (where there is one), norm, and in_proj of the next.
pub(super) fn projections(
    d: &Dims,
    slots: &Slots<Scratch>,
    eps: f64,
    previous: Option<&Previous<'_>>,
    residual: &mut [f32],
    rstd: &mut [f32],
    next: Next<'_>,
) {
    let dm = d.d_model;
    let layout = Layout::rows(dm);
    let (weight, task, out, weights) = match next {
        Next::Block { weights, norm, xz } => (norm, 2 * row_task(d.d_inner), xz, Some(weights)),
        Next::Temporal { norm, temporal } => (norm, ROWS * dm, temporal, None),
    };
    let rows = residual.par_chunks_mut(ROWS * dm).zip(rstd.par_chunks_mut(ROWS));
    rows.zip(out.par_chunks_mut(task)).enumerate().for_each(|(i, ((r, rstd), out))| {
        slots.with(|scratch| {
            if let Some(previous) = previous {
                add_block_output(d, previous, i * ROWS, r);
            }
            let rows = rstd.len();
            match weights {
                None => NormFwd { x: r, weight, eps, y: out, layout, rstd }.run(),
                Some(weights) => {
                    let n = &mut scratch.narrow[..];
                    NormFwd { x: r, weight, eps, y: n, layout, rstd }.run();
                    in_proj(weights, (n, layout), rows, out);
                }
            }
        });
    });
}

/// `[x | z]` of normalised rows.
pub(super) fn in_proj(weights: &LayerWeights, (n, la): (&[f32], Layout), rows: usize, xz: &mut [f32]) {
    let out = weights.in_proj_bias.as_deref().map_or(Out::Set, Out::Bias);
    Rows { a: n, la, rows, b: &weights.in_proj, c: xz, lc: Layout::TILED, out }.run();
}

fn add_block_output(d: &Dims, previous: &Previous<'_>, first: usize, r: &mut [f32]) {
    let dm = d.d_model;
    r.copy_from_slice(&previous.residual[first * dm..][..r.len()]);
    if let Some(bias) = previous.out_proj_bias {
        for row in r.chunks_exact_mut(dm) {
            row.iter_mut().zip(bias).for_each(|(r, b)| *r += b);
        }
    }
    let (rows, a) = (r.len() / dm, &previous.gated[first * GROUP..]);
    let (la, lc) = (Layout::grouped(d.tokens), Layout::rows(dm));
    Rows { a, la, rows, b: previous.out_proj, c: r, lc, out: Out::Add }.run();
}

/// Convolution, x_proj, dt_proj and step sizes from `acts.xz`.
pub(super) fn convolve(
    d: &Dims,
    weights: &LayerWeights,
    history: &[f32],
    reset: &[u8],
    acts: &mut Activations,
) {
    let Activations { xz, u, q, delta } = acts;
    let input = conv_input(d, weights, xz, history, reset);
    let tiles = row_task(d.d_inner);
    let rows = u.par_chunks_mut(tiles).zip(q.par_chunks_mut(ROWS * d.q_cols));
    rows.zip(delta.par_chunks_mut(tiles)).enumerate().for_each(|(task, ((u, q), delta))| {
        let rows = q.len() / d.q_cols;
        let (tiled, plain, out) = (Layout::TILED, Layout::rows(d.q_cols), Out::Set);
        ConvFwd { input, task, rows, u }.run();
        Rows { a: u, la: tiled, rows, b: &weights.x_proj, c: q, lc: plain, out }.run();
        Rows { a: q, la: plain, rows, b: &weights.dt_proj, c: delta, lc: tiled, out }.run();
        StepSize { tiles: delta, rows, bias: &weights.dt_bias, dims: d }.run();
    });
}

pub(super) fn conv_input<'a>(
    d: &Dims,
    weights: &'a LayerWeights,
    xz: &'a [f32],
    history: &'a [f32],
    reset: &'a [u8],
) -> ConvInput<'a> {
    let (taps, bias) = (&weights.taps, &weights.conv_bias);
    ConvInput { xz, history, reset, taps, bias, seq: d.seq, groups: d.groups }
}

/// Where a scan writes.
pub(super) struct ScanOut<'a> {
    /// `[group, tokens, 64]`.
    pub gated: &'a mut [f32],
    /// State after the window, `[group, batch, block, states, lanes]`.
    pub h: &'a mut [f32],
    /// States before each chunk, `[group, batch, chunk, block, states, lanes]`, or empty.
    pub kept: &'a mut [f32],
}

/// A block's inputs of the scan, for every (batch row, group).
#[derive(Clone, Copy)]
pub(super) struct ScanView<'a> {
    pub weights: &'a LayerWeights,
    pub acts: &'a Activations,
    pub reset: &'a [u8],
}

impl<'a> ScanView<'a> {
    pub fn at(&self, dims: &'a Dims, batch: usize, group: usize) -> ScanInput<'a> {
        let Activations { xz, u, q, delta } = self.acts;
        ScanInput { dims, weights: self.weights, u, delta, xz, q, reset: self.reset, batch, group }
    }
}

/// The scan of every (batch row, group). `out.kept` is empty where no backward pass will follow.
pub(super) fn scan(d: &Dims, slots: &Slots<Scratch>, view: &ScanView<'_>, ssm: &[f32], out: ScanOut<'_>) {
    let state = d.d_inner * d.d_state;
    let task = |i: usize, y: &mut [f32], h: &mut [f32], kept: Option<&mut [f32]>| {
        let (group, batch) = (i / d.batch, i % d.batch);
        slots.with(|scratch| {
            let input = view.at(d, batch, group);
            let h_in = &ssm[batch * state..][..state];
            ScanFwd { input, h_in, h, kept, y, scratch: &mut scratch.scan_fwd }.run();
        });
    };
    let tasks = out.gated.par_chunks_mut(d.seq * GROUP).zip(out.h.par_chunks_mut(d.group_state()));
    // Handing less than this many tokens to another thread costs more than it saves.
    let tasks = tasks.with_min_len(ROWS.div_ceil(d.seq));
    if out.kept.is_empty() {
        tasks.enumerate().for_each(|(i, (y, h))| task(i, y, h, None));
    } else {
        let kept = out.kept.par_chunks_mut(d.chunks * d.group_state());
        tasks.zip(kept).enumerate().for_each(|(i, ((y, h), kept))| task(i, y, h, Some(kept)));
    }
}
