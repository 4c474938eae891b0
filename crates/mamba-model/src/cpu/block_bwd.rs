//! The phases of a backward pass, mirror images of `block_fwd`'s.

use super::block_fwd::{Activations, ScanView, Scratch, conv_input};
use super::conv::{ConvBwd, ConvInput, ConvInputGrad};
use super::derived::{LayerWeights, Transposed};
use super::dims::{Dims, GROUP, LANES, ROWS};
use super::gemm::{OUTER_ROWS, Out, Outer, Rows, View};
use super::norm::{NormAgain, NormBwd};
use super::pool::Slots;
use super::scan_bwd::ScanBwd;
use crate::params::{LayerParams, Span};
use rayon::prelude::*;

/// Buffers of a backward pass, shared by all blocks.
#[derive(Debug, Default)]
pub(super) struct BwdBuffers {
    /// Gradient of the residual stream, `[tokens, d_model]`.
    pub dr: Vec<f32>,
    /// Gradient of the gated output, then the gated output itself, `[tokens, width]`.
    pub dg: Vec<f32>,
    /// Gradient of the convolution's output, `[tokens, width]`.
    pub dc: Vec<f32>,
    /// `[tokens, dx | dz]`.
    pub dxz: Vec<f32>,
    /// `[tokens, q_cols]`.
    pub dq: Vec<f32>,
    /// Normalised block input, `[tokens, d_model]`.
    pub n: Vec<f32>,
    /// By group, `[batch, group, seq, 64]` each.
    pub gated: Vec<f32>,
    pub du: Vec<f32>,
    pub draw: Vec<f32>,
    pub dz: Vec<f32>,
    /// `[batch, group, seq, dB | dC]`.
    pub dbc: Vec<f32>,
    /// `[batch, group, block, states, lanes]`.
    pub da: Vec<f32>,
    /// `[batch, group, dD | d dt_bias]`.
    pub d_skip_bias: Vec<f32>,
    /// `[row task, d_conv + 1, width]`.
    pub conv_sums: Vec<f32>,
    /// `[row task, d_model]`.
    pub norm_sums: Vec<f32>,
}

impl BwdBuffers {
    pub fn new(d: &Dims) -> Self {
        let zeros = |len: usize| vec![0.0f32; len];
        let (m, pairs) = (d.tokens, d.batch * d.groups);
        Self {
            dr: zeros(m * d.d_model),
            dg: zeros(m * d.width),
            dc: zeros(m * d.width),
            dxz: zeros(m * 2 * d.width),
            dq: zeros(m * d.q_cols),
            n: zeros(m * d.d_model),
            gated: zeros(d.grouped()),
            du: zeros(d.grouped()),
            draw: zeros(d.grouped()),
            dz: zeros(d.grouped()),
            dbc: zeros(pairs * d.seq * 2 * d.d_state),
            da: zeros(pairs * d.group_state()),
            d_skip_bias: zeros(pairs * 2 * GROUP),
            conv_sums: zeros(d.row_tasks() * (d.d_conv + 1) * d.width),
            norm_sums: zeros(d.row_tasks() * d.d_model),
        }
    }

    pub fn len(&self) -> usize {
        let rows = self.dr.len() + self.dg.len() + self.dc.len() + self.dxz.len() + self.dq.len();
        let grouped = self.gated.len() + self.du.len() + self.draw.len() + self.dz.len() + self.dbc.len();
        let sums = self.da.len() + self.d_skip_bias.len() + self.conv_sums.len() + self.norm_sums.len();
        rows + grouped + sums + self.n.len()
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
/// Leaves `dr`, `dg`, and of the upper block `dxz`, `n`; the norm's sums a row task in `norm_sums`.
pub(super) fn projections(
    d: &Dims,
    slots: &Slots<Scratch>,
    buf: &mut BwdBuffers,
    upper: &Upper<'_>,
    norm: &NormOf<'_>,
    lower: Option<&Transposed>,
) {
    let (dm, w) = (d.d_model, d.width);
    let BwdBuffers { dr, dg, dc, dxz, n, dz, norm_sums, .. } = buf;
    let rows = dr.par_chunks_mut(ROWS * dm).zip(dg.par_chunks_mut(ROWS * w));
    let rows = rows.zip(dxz.par_chunks_mut(ROWS * 2 * w)).zip(n.par_chunks_mut(ROWS * dm));
    rows.zip(norm_sums.par_chunks_mut(dm)).enumerate().for_each(|(i, ((((dr, dg), dxz), n), sums))| {
        let (first, rows) = (i * ROWS, dr.len() / dm);
        let x = &norm.residual[first * dm..][..rows * dm];
        let rstd = &norm.rstd[first..][..rows];
        let weight = norm.weight;
        match upper {
            Upper::Final { d_temporal } => {
                let dy = &d_temporal[first * dm..][..rows * dm];
                NormBwd { x, weight, rstd, dy, dx: dr, accumulate: false, d_weight: sums }.run();
            }
            Upper::Block { conv, transposed } => slots.with(|scratch| {
                ConvInputGrad { input: *conv, first, dc, dx: dxz }.run();
                d.gather(dz, first, &mut dxz[w..], 2 * w);
                let dy = &mut scratch.narrow[..rows * dm];
                let b = &transposed.in_proj;
                Rows { a: dxz, lda: 2 * w, rows, b, c: dy, ldc: dm, out: Out::Set }.run();
                NormAgain { x, weight, rstd, y: n }.run();
                NormBwd { x, weight, rstd, dy, dx: dr, accumulate: true, d_weight: sums }.run();
            }),
        }
        if let Some(t) = lower {
            Rows { a: dr, lda: dm, rows, b: &t.out_proj, c: dg, ldc: w, out: Out::Set }.run();
        }
    });
}

/// The scan of every (batch row, group), from the kept states.
pub(super) fn scan(
    d: &Dims,
    slots: &Slots<Scratch>,
    buf: &mut BwdBuffers,
    view: &ScanView<'_>,
    kept: &[f32],
) {
    let BwdBuffers { dg, gated, du, draw, dz, dbc, da, d_skip_bias, .. } = buf;
    let (size, kept_size) = (d.seq * GROUP, d.chunks * d.group_state());
    let tasks = gated.par_chunks_mut(size).zip(du.par_chunks_mut(size)).zip(draw.par_chunks_mut(size));
    let tasks = tasks.zip(dz.par_chunks_mut(size)).zip(dbc.par_chunks_mut(d.seq * 2 * d.d_state));
    let tasks = tasks.zip(da.par_chunks_mut(d.group_state())).zip(d_skip_bias.par_chunks_mut(2 * GROUP));
    tasks.enumerate().for_each(|(i, ((((((g, du), draw), dz), dbc), da), d_skip_bias))| {
        slots.with(|scratch| {
            let Some(scratch) = &mut scratch.scan_bwd else { return };
            let input = view.at(d, i / d.groups, i % d.groups);
            let kept = &kept[i * kept_size..][..kept_size];
            ScanBwd { input, kept, dg, g, du, draw, dz, dbc, da, d_skip_bias, scratch }.run();
        });
    });
}

/// Through dt_proj, x_proj and the convolution. Leaves `dq`, `dc`, the gated output in `dg`, and d raw in `acts.raw`.
pub(super) fn convolve(
    d: &Dims,
    buf: &mut BwdBuffers,
    (weights, transposed): (&LayerWeights, &Transposed),
    (history, reach): (&[f32], &[u8]),
    acts: &mut Activations,
) {
    let (w, qc, dr) = (d.width, d.q_cols, d.dt_rank);
    let BwdBuffers { dg, dc, dq, gated, du, draw, dbc, conv_sums, .. } = buf;
    let Activations { xz, raw, .. } = acts;
    let input = conv_input(d, weights, xz, history, reach);
    let rows = dc.par_chunks_mut(ROWS * w).zip(dq.par_chunks_mut(ROWS * qc)).zip(dg.par_chunks_mut(ROWS * w));
    let rows = rows.zip(raw.par_chunks_mut(ROWS * w)).zip(conv_sums.par_chunks_mut((d.d_conv + 1) * w));
    rows.enumerate().for_each(|(i, ((((dc, dq), dg), raw), sums))| {
        let (first, rows) = (i * ROWS, dc.len() / w);
        d.gather(gated, first, dg, w);
        d.gather(draw, first, raw, w);
        d.gather(du, first, dc, w);
        for (i, dq) in dq.chunks_exact_mut(qc).enumerate() {
            fold_groups(d, dbc, first + i, &mut dq[dr..]);
        }
        Rows { a: raw, lda: w, rows, b: &transposed.dt_proj, c: dq, ldc: qc, out: Out::Set }.run();
        Rows { a: dq, lda: qc, rows, b: &transposed.x_proj, c: dc, ldc: w, out: Out::Add }.run();
        ConvBwd { input, first, d: dc, sums }.run();
    });
}

/// dB and dC of row `m`: the groups' parts, in order.
fn fold_groups(d: &Dims, dbc: &[f32], m: usize, out: &mut [f32]) {
    let (b, t, cols) = (m / d.seq, m % d.seq, 2 * d.d_state);
    for g in 0..d.groups {
        let part = &dbc[((b * d.groups + g) * d.seq + t) * cols..][..cols];
        match g {
            0 => out.copy_from_slice(part),
            _ => out.iter_mut().zip(part).for_each(|(o, p)| *o += p),
        }
    }
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

/// One product of a weight gradient: rows `i · OUTER_ROWS..` of `out += xᵀ·y`.
struct Job<'a> {
    x: View<'a>,
    y: View<'a>,
    cols: usize,
    ldc: usize,
    out: &'a mut [f32],
}

impl Job<'_> {
    fn run(self, tokens: usize, scratch: &mut Scratch) {
        let rows = self.out.len().div_ceil(self.ldc);
        let Job { x, y, cols, ldc, out } = self;
        Outer { x, y, tokens, rows, cols, c: out, ldc, scratch: &mut scratch.outer }.run();
    }
}

/// Jobs of one weight, by blocks of rows.
fn jobs<'a>(
    x: View<'a>,
    y: View<'a>,
    cols: usize,
    out: &'a mut [f32],
) -> impl IndexedParallelIterator<Item = Job<'a>> {
    let chunks = out.par_chunks_mut(OUTER_ROWS * cols).enumerate();
    chunks.map(move |(i, out)| Job { x: x.skip(i * OUTER_ROWS), y, cols, ldc: cols, out })
}

/// Weight gradients of x_proj, dt_proj and out_proj.
pub(super) fn inner_weights(
    d: &Dims,
    slots: &Slots<Scratch>,
    buf: &BwdBuffers,
    acts: &Activations,
    layer: &LayerParams,
    grads: &mut [f32],
) {
    let (w, qc, dm, di) = (d.width, d.q_cols, d.d_model, d.d_inner);
    let [x_proj, dt_proj, out_proj] = tensors(grads, [layer.x_proj, layer.dt_proj, layer.out_proj]);
    let x = jobs(View::new(&acts.u, w, 0), View::new(&buf.dq, qc, 0), qc, x_proj);
    let dt = jobs(View::new(&acts.q, qc, 0), View::new(&acts.raw, w, 0), di, dt_proj);
    let out = jobs(View::new(&buf.dg, w, 0), View::new(&buf.dr, dm, 0), dm, out_proj);
    out.chain(x).chain(dt).for_each(|job| slots.with(|scratch| job.run(d.tokens, scratch)));
    if let Some(span) = layer.out_proj_bias {
        add_rows(&buf.dr, dm, span.of_mut(grads));
    }
}

/// Weight gradient of in_proj, and the norm's.
pub(super) fn outer_weights(
    d: &Dims,
    slots: &Slots<Scratch>,
    buf: &BwdBuffers,
    layer: &LayerParams,
    grads: &mut [f32],
) {
    let (dm, di, w) = (d.d_model, d.d_inner, d.width);
    let chunks = layer.in_proj.of_mut(grads).par_chunks_mut(OUTER_ROWS * 2 * di).enumerate();
    chunks.for_each(|(i, out)| {
        slots.with(|scratch| {
            let x = View::new(&buf.n, dm, i * OUTER_ROWS);
            let y = View::new(&buf.dxz, 2 * w, 0);
            Job { x, y, cols: di, ldc: 2 * di, out: &mut *out }.run(d.tokens, scratch);
            Job { x, y: y.skip(w), cols: di, ldc: 2 * di, out: &mut out[di..] }.run(d.tokens, scratch);
        });
    });
    if let Some(span) = layer.in_proj_bias {
        let (left, right) = span.of_mut(grads).split_at_mut(di);
        for row in buf.dxz.chunks_exact(2 * w) {
            left.iter_mut().zip(row).for_each(|(o, v)| *o += v);
            right.iter_mut().zip(&row[w..]).for_each(|(o, v)| *o += v);
        }
    }
    add_rows(&buf.norm_sums, dm, layer.norm.of_mut(grads));
}

/// `out += xᵀ·y` for row-major `x` and `y` with their widths.
pub(super) fn weight(slots: &Slots<Scratch>, x: (&[f32], usize), y: (&[f32], usize), out: &mut [f32]) {
    let tokens = x.0.len() / x.1;
    let jobs = jobs(View::new(x.0, x.1, 0), View::new(y.0, y.1, 0), y.1, out);
    jobs.for_each(|job| slots.with(|scratch| job.run(tokens, scratch)));
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
    let w = d.width;
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
        let first = i % d.groups * GROUP;
        let channels = GROUP.min(d.d_inner - first);
        let (skip, bias) = parts.split_at(GROUP);
        for (span, part) in [(layer.d, skip), (layer.dt_bias, bias)] {
            let out = &mut span.of_mut(grads)[first..first + channels];
            out.iter_mut().zip(part).for_each(|(o, v)| *o += v);
        }
        let a_log = &mut layer.a_log.of_mut(grads)[first * d.d_state..][..channels * d.d_state];
        for (c, row) in a_log.chunks_exact_mut(d.d_state).enumerate() {
            let (block, lane) = (c / LANES, c % LANES);
            let a2 = &weights.a2[(first / LANES + block) * d.states..];
            for (n, out) in row.iter_mut().enumerate() {
                // dA_log = dA · A, and A is kept times log2 e.
                let a = a2[n][lane] * std::f32::consts::LN_2;
                *out += da[(block * d.states + n) * LANES + lane] * a;
            }
        }
    }
}
