//! The phases of a forward pass. Each is one parallel loop; a task owns its rows, or its (batch row, group).

use super::conv::{ConvFwd, ConvInput};
use super::derived::LayerWeights;
use super::dims::{Dims, GROUP, ROWS};
use super::gemm::{Out, OuterScratch, Packed, Rows};
use super::norm::NormFwd;
use super::pool::Slots;
use super::scan_bwd::ScanBwdScratch;
use super::scan_fwd::{Quads, ScanFwd, ScanInput};
use rayon::prelude::*;

/// Working memory of one thread.
#[derive(Debug)]
pub(super) struct Scratch {
    /// `[ROWS, width]`.
    pub wide: Vec<f32>,
    /// `[ROWS, d_model]`.
    pub narrow: Vec<f32>,
    pub quads: Quads,
    pub outer: OuterScratch,
    pub scan_bwd: Option<ScanBwdScratch>,
}

impl Scratch {
    pub fn new(d: &Dims, train: bool) -> Self {
        let rows = ROWS.min(d.tokens);
        Self {
            wide: vec![0.0; rows * d.width],
            narrow: vec![0.0; rows * d.d_model],
            quads: Quads::new(d.states),
            outer: OuterScratch::new(),
            scan_bwd: train.then(|| ScanBwdScratch::new(d.states)),
        }
    }

    pub fn len(&self) -> usize {
        let scan = self.scan_bwd.as_ref().map_or(0, ScanBwdScratch::len);
        self.wide.len() + self.narrow.len() + self.quads.len() + self.outer.len() + scan
    }
}

/// A block's activations.
#[derive(Debug, Default)]
pub(super) struct Activations {
    /// `[tokens, x | z]`.
    pub xz: Vec<f32>,
    /// After convolution and silu, `[tokens, width]`.
    pub u: Vec<f32>,
    /// `[tokens, dt | B | C]`.
    pub q: Vec<f32>,
    /// Δ before bias and softplus, `[tokens, width]`.
    pub raw: Vec<f32>,
}

impl Activations {
    pub fn resize(&mut self, d: &Dims) {
        self.xz.resize(d.tokens * 2 * d.width, 0.0);
        self.u.resize(d.tokens * d.width, 0.0);
        self.q.resize(d.tokens * d.q_cols, 0.0);
        self.raw.resize(d.tokens * d.width, 0.0);
    }

    pub fn len(&self) -> usize {
        self.xz.capacity() + self.u.capacity() + self.q.capacity() + self.raw.capacity()
    }
}

/// What came out of the block before: the residual it read, its gated output, its out_proj.
pub(super) struct Previous<'a> {
    pub residual: &'a [f32],
    /// `[batch, group, seq, 64]`.
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
    let (dm, w) = (d.d_model, d.width);
    let (norm, stride, out, weights) = match next {
        Next::Block { weights, norm, xz } => (norm, 2 * w, xz, Some(weights)),
        Next::Temporal { norm, temporal } => (norm, dm, temporal, None),
    };
    let rows = residual.par_chunks_mut(ROWS * dm).zip(rstd.par_chunks_mut(ROWS));
    rows.zip(out.par_chunks_mut(ROWS * stride)).enumerate().for_each(|(i, ((r, rstd), out))| {
        slots.with(|scratch| {
            if let Some(previous) = previous {
                add_block_output(d, previous, i * ROWS, r, &mut scratch.wide);
            }
            let rows = rstd.len();
            match weights {
                None => NormFwd { x: r, weight: norm, eps, y: out, rstd }.run(),
                Some(weights) => {
                    let n = &mut scratch.narrow[..rows * dm];
                    NormFwd { x: r, weight: norm, eps, y: n, rstd }.run();
                    in_proj(d, weights, n, out);
                }
            }
        });
    });
}

/// `[x | z]` of normalised rows.
pub(super) fn in_proj(d: &Dims, weights: &LayerWeights, n: &[f32], xz: &mut [f32]) {
    let out = weights.in_proj_bias.as_deref().map_or(Out::Set, Out::Bias);
    let (lda, ldc) = (d.d_model, 2 * d.width);
    Rows { a: n, lda, rows: n.len() / lda, b: &weights.in_proj, c: xz, ldc, out }.run();
}

fn add_block_output(d: &Dims, previous: &Previous<'_>, first: usize, r: &mut [f32], wide: &mut [f32]) {
    let (dm, w) = (d.d_model, d.width);
    let rows = r.len() / dm;
    let gated = &mut wide[..rows * w];
    d.gather(previous.gated, first, gated, w);
    r.copy_from_slice(&previous.residual[first * dm..][..rows * dm]);
    if let Some(bias) = previous.out_proj_bias {
        for row in r.chunks_exact_mut(dm) {
            row.iter_mut().zip(bias).for_each(|(r, b)| *r += b);
        }
    }
    Rows { a: gated, lda: w, rows, b: previous.out_proj, c: r, ldc: dm, out: Out::Add }.run();
}

/// Convolution, x_proj and dt_proj from `acts.xz`.
pub(super) fn convolve(
    d: &Dims,
    weights: &LayerWeights,
    history: &[f32],
    reach: &[u8],
    acts: &mut Activations,
) {
    let (w, qc) = (d.width, d.q_cols);
    let Activations { xz, u, q, raw } = acts;
    let input = conv_input(d, weights, xz, history, reach);
    let rows = u.par_chunks_mut(ROWS * w).zip(q.par_chunks_mut(ROWS * qc)).zip(raw.par_chunks_mut(ROWS * w));
    rows.enumerate().for_each(|(i, ((u, q), raw))| {
        ConvFwd { input, first: i * ROWS, u }.run();
        let rows = u.len() / w;
        Rows { a: u, lda: w, rows, b: &weights.x_proj, c: q, ldc: qc, out: Out::Set }.run();
        Rows { a: q, lda: qc, rows, b: &weights.dt_proj, c: raw, ldc: w, out: Out::Set }.run();
    });
}

pub(super) fn conv_input<'a>(
    d: &Dims,
    weights: &'a LayerWeights,
    xz: &'a [f32],
    history: &'a [f32],
    reach: &'a [u8],
) -> ConvInput<'a> {
    let (taps, bias) = (&weights.taps, &weights.conv_bias);
    ConvInput { x: xz, history, reach, taps, bias, seq: d.seq, width: d.width }
}

/// The scan of every (batch row, group). `kept` is empty where no backward pass will follow.
pub(super) fn scan(d: &Dims, slots: &Slots<Scratch>, view: &ScanView<'_>, ssm: &[f32], out: ScanOut<'_>) {
    let state = d.d_inner * d.d_state;
    let task = |i: usize, y: &mut [f32], h: &mut [f32], kept: Option<&mut [f32]>| {
        let (batch, group) = (i / d.groups, i % d.groups);
        slots.with(|scratch| {
            let input = view.at(d, batch, group);
            let h_in = &ssm[batch * state..][..state];
            ScanFwd { input, h_in, h, kept, y, quads: &mut scratch.quads }.run();
        });
    };
    let tasks = out.gated.par_chunks_mut(d.seq * GROUP).zip(out.h.par_chunks_mut(d.group_state()));
    if out.kept.is_empty() {
        tasks.enumerate().for_each(|(i, (y, h))| task(i, y, h, None));
    } else {
        let kept = out.kept.par_chunks_mut(d.chunks * d.group_state());
        tasks.zip(kept).enumerate().for_each(|(i, ((y, h), kept))| task(i, y, h, Some(kept)));
    }
}

/// Where a scan writes.
pub(super) struct ScanOut<'a> {
    /// `[batch, group, seq, 64]`.
    pub gated: &'a mut [f32],
    /// State after the window, `[batch, group, block, states, lanes]`.
    pub h: &'a mut [f32],
    /// States before each chunk, `[batch, group, chunk, block, states, lanes]`, or empty.
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
        let Activations { xz, u, q, raw } = self.acts;
        ScanInput { dims, weights: self.weights, u, raw, xz, q, reset: self.reset, batch, group }
    }
}
