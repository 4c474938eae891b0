//! The kernels give the same bits on every instruction set with fused multiply-adds: vectors of 16, 8 and 1 lanes.

use super::buffer::Buffer;
use super::conv::{ConvBwd, ConvFwd, ConvInput, ConvInputGrad};
use super::derived::Derived;
use super::dims::{Dims, GROUP, ROWS, row_task};
use super::gemm::{Layout, Matrix, Out, Outer, Packed, Rows};
use super::loss::CrossEntropy;
use super::norm::{NormBwd, NormFwd};
use super::scan_bwd::{ScanBwd, ScanBwdScratch};
use super::scan_fwd::{ScanFwd, ScanFwdScratch, ScanInput, StepSize};
use crate::config::{MambaConfig, ModelConfig};
use crate::params::{MambaWeights, ParamTable};
use crate::rng::SplitMix64;
use pulp::{Arch, Scalar, WithSimd};

#[derive(Debug, Clone, Copy)]
enum Isa {
    Widest,
    Avx2,
    Scalar,
}

impl Isa {
    fn run(self, op: impl WithSimd) {
        match self {
            Self::Widest => drop(Arch::new().dispatch(op)),
            Self::Scalar => drop(op.with_simd(Scalar)),
            Self::Avx2 => avx2(op),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn avx2(op: impl WithSimd) {
    use pulp::Simd;
    match pulp::x86::V3::try_new() {
        Some(simd) => drop(Simd::vectorize(simd, op)),
        None => drop(Arch::new().dispatch(op)),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn avx2(op: impl WithSimd) {
    drop(Arch::new().dispatch(op));
}

fn noise(seed: u64, len: usize) -> Buffer {
    let mut rng = SplitMix64::new(seed, "isa");
    let mut x = Buffer::zeros(len);
    x.iter_mut().for_each(|x| *x = rng.normal() as f32);
    x
}

fn bits(parts: &[&[f32]]) -> Vec<Vec<u32>> {
    parts.iter().map(|part| part.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Compares the outputs of `kernel` on all instruction sets.
fn same_everywhere(kernel: impl Fn(Isa) -> Vec<Vec<u32>>) {
    let widest = kernel(Isa::Widest);
    assert!(widest.iter().flatten().any(|&b| b != 0));
    for isa in [Isa::Avx2, Isa::Scalar] {
        for (i, (got, want)) in kernel(isa).iter().zip(&widest).enumerate() {
            let first = got.iter().zip(want).position(|(a, b)| a != b);
            assert_eq!(first, None, "{isa:?}, output {i}");
        }
    }
}

#[test]
fn products() {
    let (rows, k, n) = (23, 77, 85);
    let mut packed = Packed::new(k, n);
    packed.set((0, 0), &noise(1, k * n), n, (k, n));
    let (a, bias) = (noise(2, rows * k), noise(3, n));
    let (y, grads) = (noise(4, 2 * row_task(n)), noise(5, k * n));
    same_everywhere(|isa| {
        let (la, b) = (Layout::rows(k), &packed);
        let mut c = noise(6, rows * n);
        isa.run(Rows { a: &a, la, rows, b, c: &mut c, lc: Layout::rows(n), out: Out::Add });
        let mut tiled = Buffer::zeros(row_task(n));
        isa.run(Rows { a: &a, la, rows, b, c: &mut tiled, lc: Layout::TILED, out: Out::Bias(&bias) });
        let x = noise(7, (ROWS + 9) * k);
        let (x, y) = (Matrix::rows(&x, k), Matrix::tiled(&y, n.div_ceil(GROUP), 0));
        let mut grads = grads.to_vec();
        isa.run(Outer { x, first: 0, y, tokens: ROWS + 9, rows: k, cols: n, c: &mut grads, ldc: n });
        bits(&[&c, &tiled, &grads])
    });
}

#[test]
fn norm_and_loss() {
    let (rows, dim) = (7, 83);
    let (x, weight, dy) = (noise(1, rows * dim), noise(2, dim), noise(3, rows * dim));
    let targets = [5, -100, 0, 82, 64, 63, 17];
    same_everywhere(|isa| {
        let [mut y, mut dx] = std::array::from_fn(|_| Buffer::zeros(rows * dim));
        let (mut rstd, mut d_weight) = (Buffer::zeros(rows), Buffer::zeros(dim));
        let layout = Layout::rows(dim);
        isa.run(NormFwd { x: &x, weight: &weight, eps: 1e-5, y: &mut y, layout, rstd: &mut rstd });
        isa.run(NormBwd {
            x: &x,
            weight: &weight,
            rstd: &rstd,
            dy: &dy,
            dx: &mut dx,
            accumulate: false,
            d_weight: &mut d_weight,
        });
        let (mut logits, mut nll) = (noise(4, row_task(dim)), [0.0; 7]);
        let (logits_out, nll_out) = (&mut logits, &mut nll);
        isa.run(CrossEntropy {
            logits: logits_out,
            columns: dim,
            targets: &targets,
            weights: None,
            grad_scale: 0.5,
            nll: nll_out,
        });
        let mut all = bits(&[&y, &rstd, &dx, &d_weight, &logits]);
        all.push(nll.iter().flat_map(|x| [x.to_bits() as u32, (x.to_bits() >> 32) as u32]).collect());
        all
    });
}

/// Weights, sizes and random activations of one block.
struct Block {
    dims: Dims,
    derived: Derived,
    reset: Vec<u8>,
    xz: Buffer,
    u: Buffer,
    q: Buffer,
}

fn block() -> Block {
    let mut backbone = MambaConfig::new(39, 1);
    (backbone.d_state, backbone.d_conv) = (6, 4);
    let config = ModelConfig::backbone(backbone);
    let (dims, table) = (Dims::new(&config, 2, 45), ParamTable::new(&config).unwrap());
    let mut derived = Derived::new(&dims, &table, true);
    derived.refresh(&dims, &table, MambaWeights::init(&config, 1).unwrap().arena());
    let wide = dims.tiled(dims.d_inner);
    Block {
        reset: (0..dims.tokens).map(|m| u8::from(m % 30 == 7)).collect(),
        xz: noise(1, 2 * wide),
        u: noise(2, wide),
        q: noise(3, dims.tokens * dims.q_cols),
        dims,
        derived,
    }
}

#[test]
fn convolution() {
    let Block { dims: d, derived, reset, xz, .. } = block();
    let weights = &derived.layers[0];
    let history = noise(4, d.batch * (d.d_conv - 1) * d.wide());
    let (taps, bias) = (&weights.taps, &weights.conv_bias);
    let input =
        ConvInput { xz: &xz, history: &history, reset: &reset, taps, bias, seq: d.seq, groups: d.groups };
    let size = row_task(d.d_inner);
    let (task, rows) = (1, d.tokens - ROWS);
    same_everywhere(|isa| {
        let mut u = Buffer::zeros(size);
        isa.run(ConvFwd { input, task, rows, u: &mut u });
        let (mut dc, mut sums) = (noise(5, size), Buffer::zeros((d.d_conv + 1) * d.wide()));
        isa.run(ConvBwd { input, task, rows, d: &mut dc, sums: &mut sums });
        let (all, mut dx) = (noise(6, 2 * size), Buffer::zeros(size));
        isa.run(ConvInputGrad { input, task: 0, rows: ROWS, dc: &all, dx: &mut dx });
        bits(&[&u, &dc, &sums, &dx])
    });
}

#[test]
fn selective_scan() {
    let Block { dims: d, derived, reset, xz, u, q } = block();
    let weights = &derived.layers[0];
    let h_in = noise(4, d.d_inner * d.d_state);
    let dg = noise(5, d.tiled(d.d_inner));
    let size = d.seq * GROUP;
    same_everywhere(|isa| {
        let mut delta = noise(6, d.tiled(d.d_inner));
        for (task, tiles) in delta.chunks_mut(row_task(d.d_inner)).enumerate() {
            let rows = ROWS.min(d.tokens - task * ROWS);
            isa.run(StepSize { tiles, rows, bias: &weights.dt_bias, dims: &d });
        }
        let (dims, batch, group) = (&d, 1, 1);
        let input =
            ScanInput { dims, weights, u: &u, delta: &delta, xz: &xz, q: &q, reset: &reset, batch, group };
        let (mut y, mut h) = (Buffer::zeros(size), Buffer::zeros(d.group_state()));
        let mut kept = Buffer::zeros(d.chunks * d.group_state());
        let mut scratch = Box::new(ScanFwdScratch::new(d.states));
        let scratch = &mut *scratch;
        isa.run(ScanFwd { input, h_in: &h_in, h: &mut h, kept: Some(&mut kept), y: &mut y, scratch });
        let [mut g, mut du, mut draw, mut dz] = std::array::from_fn(|_| Buffer::zeros(size));
        let mut dbc = Buffer::zeros(d.seq * 2 * d.d_state);
        let (mut da, mut d_skip_bias) = (Buffer::zeros(d.group_state()), Buffer::zeros(2 * GROUP));
        isa.run(ScanBwd {
            input,
            kept: &kept,
            dg: &dg,
            g: &mut g,
            du: &mut du,
            draw: &mut draw,
            dz: &mut dz,
            dbc: &mut dbc,
            da: &mut da,
            d_skip_bias: &mut d_skip_bias,
            scratch: &mut ScanBwdScratch::new(d.states),
        });
        assert_eq!(&*y, &*g, "the backward pass replays the forward pass");
        bits(&[&delta, &y, &h, &kept, &du, &draw, &dz, &dbc, &da, &d_skip_bias])
    });
}
