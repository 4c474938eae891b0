//! The phases of a backward pass, mirror images of `block_fwd`'s.

use super::block_fwd::{Activations, ScanView, Scratch, conv_input};
use super::buffer::Buffer;
use super::conv::{ConvBwd, ConvInput, ConvInputGrad};
use super::derived::{LayerWeights, Transposed};
use super::dims::{Dims, GROUP, LANES, ROWS, row_task};
use super::gemm::{Layout, Matrix, OUTER_ROWS, Out, Outer, Rows};
use super::norm::{NormAgain, NormBwd};
use super::pool::Slots;
use super::scan_bwd::ScanBwd;
use crate::params::{LayerParams, Span};
use rayon::prelude::*;

/// Buffers of a backward pass, shared by all blocks.
#[derive(Debug, Default)]
pub(super) struct BwdBuffers {
    /// Gradient of the residual stream, `[tokens, d_model]`, and the same tiled.
    pub dr: Buffer,
    pub dr_tiled: Buffer,
    /// Gradient of the gated output, tiled `[tokens, d_inner]`.
    pub dg: Buffer,
    /// Gradient of the convolution's output, tiled `[tokens, d_inner]`.
    pub dc: Buffer,
    /// Gradient of the convolution's input, tiled `[tokens, d_inner]`.
    pub dx: Buffer,
    /// Tiled `[tokens, q_cols]`.
    pub dq: Buffer,
    /// Normalised block input, tiled `[tokens, d_model]`.
    pub n: Buffer,
    /// What the scan leaves, `[group, tokens, 64]` each.
    pub du: Buffer,
    pub draw: Buffer,
    pub dz: Buffer,
    /// `[group, tokens, dB | dC]`.
    pub dbc: Buffer,
    /// `[group, batch, block, states, lanes]`.
    pub da: Buffer,
    /// `[group, batch, dD | d dt_bias]`.
    pub d_skip_bias: Buffer,
    /// `[row task, d_conv + 1, wide]`.
    pub conv_sums: Buffer,
    /// `[row task, d_model]`.
    pub norm_sums: Buffer,
}

impl BwdBuffers {
    pub fn new(d: &Dims) -> Self {
        let zeros = Buffer::zeros;
        let (m, pairs, wide) = (d.tokens, d.batch * d.groups, d.tiled(d.d_inner));
        Self {
            dr: zeros(m * d.d_model),
            dr_tiled: zeros(d.tiled(d.d_model)),
            dg: zeros(wide),
            dc: zeros(wide),
            dx: zeros(wide),
            dq: zeros(d.tiled(d.q_cols)),
            n: zeros(d.tiled(d.d_model)),
            du: zeros(d.grouped()),
            draw: zeros(d.grouped()),
            dz: zeros(d.grouped()),
            dbc: zeros(pairs * d.seq * 2 * d.d_state),
            da: zeros(pairs * d.group_state()),
            d_skip_bias: zeros(pairs * 2 * GROUP),
            conv_sums: zeros(d.row_tasks() * (d.d_conv + 1) * d.wide()),
            norm_sums: zeros(d.row_tasks() * d.d_model),
        }
    }

    pub fn len(&self) -> usize {
        let narrow = self.dr.len() + self.dr_tiled.len() + self.n.len() + self.dq.len();
        let wide = self.dg.len() + self.dc.len() + self.dx.len();
        let grouped = self.du.len() + self.draw.len() + self.dz.len() + self.dbc.len();
        let sums = self.da.len() + self.d_skip_bias.len() + self.conv_sums.len() + self.norm_sums.len();
        narrow + wide + grouped + sums
    }
}

/// The norm that a gradient passes first: the final one, or a block's after its in_proj.
pub(super) enum Upper<'a> {
    /// Gradient of the model's output.
    Final { d_temporal: &'a [f32] },
    /// `conv` reads the block's samples, `transposed` its packed transposes.
    Block { conv: ConvInput<'a>, transposed: &'a Transposed },
}

/// A norm's input, scale and reciprocal roots.
pub(super) struct NormOf<'a> {
    pub residual: &'a [f32],
    pub weight: &'a [f32],
    pub rstd: &'a [f32],
}

/// Through in_proj and norm of the upper block, then through out_proj of the lower (where there is one).
/// Leaves `dr`, `dg`, and of the upper block `dx`, `n`; the norm's sums a row task in `norm_sums`.
pub(super) fn projections(
    d: &Dims,
    slots: &Slots<Scratch>,
    buf: &mut BwdBuffers,
    upper: &Upper<'_>,
    norm: &NormOf<'_>,
    lower: Option<&Transposed>,
) {
    let (dm, narrow, wide) = (d.d_model, row_task(d.d_model), row_task(d.d_inner));
    let (plain, tiled) = (Layout::rows(dm), Layout::TILED);
    let BwdBuffers { dr, dr_tiled, dg, dc, dx, n, dz, norm_sums, .. } = buf;
    let rows = dr.par_chunks_mut(ROWS * dm).zip(dr_tiled.par_chunks_mut(narrow));
    let rows = rows.zip(dg.par_chunks_mut(wide)).zip(dx.par_chunks_mut(wide));
    let rows = rows.zip(n.par_chunks_mut(narrow)).zip(norm_sums.par_chunks_mut(dm));
    rows.enumerate().for_each(|(task, (((((dr, dr_tiled), dg), dx), n), d_weight))| {
        let (first, rows) = (task * ROWS, dr.len() / dm);
        let x = &norm.residual[first * dm..][..rows * dm];
        let rstd = &norm.rstd[first..][..rows];
        let weight = norm.weight;
        match upper {
            Upper::Final { d_temporal } => {
                let dy = &d_temporal[first * dm..][..rows * dm];
                NormBwd { x, weight, rstd, dy, dx: dr, accumulate: false, d_weight }.run();
            }
            Upper::Block { conv, transposed } => slots.with(|scratch| {
                ConvInputGrad { input: *conv, task, rows, dc, dx }.run();
                let dy = &mut scratch.narrow[..rows * dm];
                let t = transposed;
                Rows { a: dx, la: tiled, rows, b: &t.in_proj_x, c: dy, lc: plain, out: Out::Set }.run();
                let (a, la) = (&dz[first * GROUP..], Layout::grouped(d.tokens));
                Rows { a, la, rows, b: &t.in_proj_z, c: dy, lc: plain, out: Out::Add }.run();
                NormAgain { x, weight, rstd, y: n, layout: tiled }.run();
                NormBwd { x, weight, rstd, dy, dx: dr, accumulate: true, d_weight }.run();
            }),
        }
        if let Some(t) = lower {
            to_tiles(dr, dm, dr_tiled);
            Rows { a: dr, la: plain, rows, b: &t.out_proj, c: dg, lc: tiled, out: Out::Set }.run();
        }
    });
}

/// Copies the rows of a row task into its tiles.
pub(super) fn to_tiles(x: &[f32], width: usize, tiles: &mut [f32]) {
    for (r, row) in x.chunks_exact(width).enumerate() {
        let mut rest = row;
        Layout::TILED.pieces_mut(tiles, r, width, |piece| {
            let (from, tail) = rest.split_at(piece.len());
            piece.copy_from_slice(from);
            rest = tail;
        });
    }
}

/// The scan of every (batch row, group), from the kept states; writes the gated output again.
pub(super) fn scan(
    d: &Dims,
    slots: &Slots<Scratch>,
    buf: &mut BwdBuffers,
    gated: &mut [f32],
    view: &ScanView<'_>,
    kept: &[f32],
) {
    let BwdBuffers { dg, du, draw, dz, dbc, da, d_skip_bias, .. } = buf;
    let (size, kept_size) = (d.seq * GROUP, d.chunks * d.group_state());
    let tasks = gated.par_chunks_mut(size).zip(du.par_chunks_mut(size)).zip(draw.par_chunks_mut(size));
    let tasks = tasks.zip(dz.par_chunks_mut(size)).zip(dbc.par_chunks_mut(d.seq * 2 * d.d_state));
    let tasks = tasks.zip(da.par_chunks_mut(d.group_state())).zip(d_skip_bias.par_chunks_mut(2 * GROUP));
    tasks.enumerate().for_each(|(i, ((((((g, du), draw), dz), dbc), da), d_skip_bias))| {
        slots.with(|scratch| {
            let Some(scratch) = &mut scratch.scan_bwd else { return };
            let input = view.at(d, i % d.batch, i / d.batch);
            let kept = &kept[i * kept_size..][..kept_size];
            ScanBwd { input, kept, dg, g, du, draw, dz, dbc, da, d_skip_bias, scratch }.run();
        });
    });
}

/// Through dt_proj, x_proj and the convolution. Leaves `dq` and `dc`.
pub(super) fn convolve(
    d: &Dims,
    buf: &mut BwdBuffers,
    (weights, transposed): (&LayerWeights, &Transposed),
    (history, reset): (&[f32], &[u8]),
    acts: &Activations,
) {
    let (wide, tiled) = (row_task(d.d_inner), Layout::TILED);
    let BwdBuffers { dc, dq, du, draw, dbc, conv_sums, .. } = buf;
    let input = conv_input(d, weights, &acts.xz, history, reset);
    let rows = dc.par_chunks_mut(wide).zip(dq.par_chunks_mut(row_task(d.q_cols)));
    let rows = rows.zip(conv_sums.par_chunks_mut((d.d_conv + 1) * d.wide()));
    rows.enumerate().for_each(|(task, ((dc, dq), sums))| {
        let (first, rows) = (task * ROWS, ROWS.min(d.tokens - task * ROWS));
        for r in 0..rows {
            fold_groups(d, dbc, first + r, r, dq);
        }
        let (a, la) = (&draw[first * GROUP..], Layout::grouped(d.tokens));
        Rows { a, la, rows, b: &transposed.dt_proj, c: dq, lc: tiled, out: Out::Set }.run();
        d.gather(du, task, dc);
        Rows { a: dq, la: tiled, rows, b: &transposed.x_proj, c: dc, lc: tiled, out: Out::Add }.run();
        ConvBwd { input, task, rows, d: dc, sums }.run();
    });
}

/// dB and dC of token `m`, row `r` of the tiles: the groups' parts, in order.
fn fold_groups(d: &Dims, dbc: &[f32], m: usize, r: usize, dq: &mut [f32]) {
    let cols = 2 * d.d_state;
    let part = |g: usize| &dbc[(g * d.tokens + m) * cols..][..cols];
    let mut done = 0;
    Layout::TILED.pieces_mut(dq, r, d.q_cols, |piece| {
        // The dt columns come from a product.
        let skipped = piece.len().min(d.dt_rank.saturating_sub(done));
        let from = (done + skipped).saturating_sub(d.dt_rank);
        let out = &mut piece[skipped..];
        for g in 0..d.groups {
            let part = &part(g)[from..from + out.len()];
            match g {
                0 => out.copy_from_slice(part),
                _ => out.iter_mut().zip(part).for_each(|(o, p)| *o += p),
            }
        }
        done += piece.len();
    });
}

/// Disjoint tensors of an arena, in arena order.
fn tensors<const N: usize>(mut arena: &mut [f32], spans: [Span; N]) -> [&mut [f32]; N] {
    let mut end = 0;
    spans.map(|span| {
        let (_, rest) = std::mem::take(&mut arena).split_at_mut(span.offset - end);
        let (tensor, rest) = rest.split_at_mut(span.len);
        end = span.offset + span.len;
        arena = rest;
        tensor
    })
}

/// One product of a weight gradient: the rows of `out += xᵀ·y` from `first` on.
struct Job<'a> {
    x: Matrix<'a>,
    first: usize,
    y: Matrix<'a>,
    cols: usize,
    ldc: usize,
    out: &'a mut [f32],
}

impl Job<'_> {
    fn run(self, tokens: usize) {
        let Job { x, first, y, cols, ldc, out } = self;
        let rows = out.len().div_ceil(ldc);
        Outer { x, first, y, tokens, rows, cols, c: out, ldc }.run();
    }
}

/// Jobs of one weight, by blocks of rows.
fn jobs<'a>(
    x: Matrix<'a>,
    y: Matrix<'a>,
    cols: usize,
    out: &'a mut [f32],
) -> impl IndexedParallelIterator<Item = Job<'a>> {
    let chunks = out.par_chunks_mut(OUTER_ROWS * cols).enumerate();
    chunks.map(move |(i, out)| Job { x, first: i * OUTER_ROWS, y, cols, ldc: cols, out })
}

/// Weight gradients of x_proj, dt_proj and out_proj.
pub(super) fn inner_weights(
    d: &Dims,
    buf: &BwdBuffers,
    gated: &[f32],
    acts: &Activations,
    layer: &LayerParams,
    grads: &mut [f32],
) {
    let (dm, di, qc) = (d.d_model, d.d_inner, d.q_cols);
    let tiled = |x, cols: usize| Matrix::tiled(x, cols.div_ceil(GROUP), 0);
    let [x_proj, dt_proj, out_proj] = tensors(grads, [layer.x_proj, layer.dt_proj, layer.out_proj]);
    let x = jobs(tiled(&acts.u, di), tiled(&buf.dq, qc), qc, x_proj);
    let dt = jobs(Matrix::rows(&acts.q, qc), Matrix::grouped(&buf.draw, d.tokens), di, dt_proj);
    let out = jobs(Matrix::grouped(gated, d.tokens), tiled(&buf.dr_tiled, dm), dm, out_proj);
    out.chain(x).chain(dt).for_each(|job| job.run(d.tokens));
    if let Some(span) = layer.out_proj_bias {
        add_rows(&buf.dr, dm, span.of_mut(grads));
    }
}

/// Weight gradient of in_proj, and the norm's.
pub(super) fn outer_weights(d: &Dims, buf: &BwdBuffers, layer: &LayerParams, grads: &mut [f32]) {
    let (dm, di) = (d.d_model, d.d_inner);
    let ldc = 2 * di;
    let halves = [Matrix::tiled(&buf.dx, d.groups, 0), Matrix::grouped(&buf.dz, d.tokens)];
    let n = Matrix::tiled(&buf.n, dm.div_ceil(GROUP), 0);
    let chunks = layer.in_proj.of_mut(grads).par_chunks_mut(OUTER_ROWS * ldc).enumerate();
    chunks.for_each(|(i, out)| {
        for (half, y) in halves.into_iter().enumerate() {
            let out = &mut out[half * di..];
            Job { x: n, first: i * OUTER_ROWS, y, cols: di, ldc, out }.run(d.tokens);
        }
    });
    if let Some(span) = layer.in_proj_bias {
        for (y, out) in halves.into_iter().zip(span.of_mut(grads).chunks_exact_mut(di)) {
            y.add_rows(d.tokens, out);
        }
    }
    add_rows(&buf.norm_sums, dm, layer.norm.of_mut(grads));
}

/// `out += xᵀ·y` over `tokens` tokens, `y` with `cols` columns.
pub(super) fn weight(tokens: usize, x: Matrix<'_>, y: Matrix<'_>, cols: usize, out: &mut [f32]) {
    jobs(x, y, cols, out).for_each(|job| job.run(tokens));
}

/// Adds all rows of `x`, in order.
pub(super) fn add_rows(x: &[f32], stride: usize, out: &mut [f32]) {
    for row in x.chunks_exact(stride) {
        out.iter_mut().zip(row).for_each(|(o, v)| *o += v);
    }
}

/// Gradients of the convolution, A_log, D and the Δ bias from their parts.
pub(super) fn vectors(
    d: &Dims,
    buf: &BwdBuffers,
    weights: &LayerWeights,
    layer: &LayerParams,
    grads: &mut [f32],
) {
    let w = d.wide();
    let conv = layer.conv_weight.of_mut(grads);
    for sums in buf.conv_sums.chunks_exact((d.d_conv + 1) * w) {
        for (lag, sums) in sums.chunks_exact(w).take(d.d_conv).enumerate() {
            let tap = d.d_conv - 1 - lag;
            conv[tap..].iter_mut().step_by(d.d_conv).zip(sums).for_each(|(o, v)| *o += v);
        }
    }
    if let Some(span) = layer.conv_bias {
        let out = span.of_mut(grads);
        for sums in buf.conv_sums.chunks_exact((d.d_conv + 1) * w) {
            out.iter_mut().zip(&sums[d.d_conv * w..]).for_each(|(o, v)| *o += v);
        }
    }
    let tasks = buf.d_skip_bias.chunks_exact(2 * GROUP).zip(buf.da.chunks_exact(d.group_state()));
    for (i, (parts, da)) in tasks.enumerate() {
        let first = i / d.batch * GROUP;
        let channels = GROUP.min(d.d_inner - first);
        let (skip, bias) = parts.split_at(GROUP);
        for (span, part) in [(layer.d, skip), (layer.dt_bias, bias)] {
            let out = &mut span.of_mut(grads)[first..first + channels];
            out.iter_mut().zip(part).for_each(|(o, v)| *o += v);
        }
        let a_log = &mut layer.a_log.of_mut(grads)[first * d.d_state..][..channels * d.d_state];
        for (c, row) in a_log.chunks_exact_mut(d.d_state).enumerate() {
            let (block, lane) = (c / LANES, c % LANES);
            let a2 = &weights.a2.as_chunks::<LANES>().0[(first / LANES + block) * d.states..];
            for (n, out) in row.iter_mut().enumerate() {
                // dA_log = dA · A, and A is kept times log2 e.
                let a = a2[n][lane] * std::f32::consts::LN_2;
                *out += da[(block * d.states + n) * LANES + lane] * a;
            }
        }
    }
}
