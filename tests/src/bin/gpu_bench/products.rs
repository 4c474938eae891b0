//! Matrix products of a layer and of the head.

use crate::{Bench, D_INNER, D_MODEL, TOKENS, VOCAB, Work, random};
use half::{bf16, f16};
use mamba_cuda::DeviceBuf;
use mamba_kernels::gemm::{Gemm, Layout, Precision, Shape};
use mamba_kernels::{Elem, Result};

/// Tokens of a piece of the head.
const HEAD_TOKENS: usize = 2048;
const DT_RANK: usize = 48;
/// Width of Δ's low-rank input, B and C together.
const X_WIDTH: usize = 80;

/// Forward, input gradient and weight gradient of every projection.
pub fn projections(bench: &mut Bench) -> Result<()> {
    for (name, inner, cols) in [("in_proj", D_MODEL, 2 * D_INNER), ("x_proj", D_INNER, X_WIDTH)] {
        layer::<bf16, bf16>(bench, name, TOKENS, inner, cols)?;
    }
    // Δ's input is a slice of wider rows; the output projection adds to the f32 residual stream.
    layer::<bf16, bf16>(bench, "dt_proj", TOKENS, DT_RANK, D_INNER)?;
    layer::<bf16, f32>(bench, "out_proj", TOKENS, D_INNER, D_MODEL)?;
    layer::<bf16, f32>(bench, "head", HEAD_TOKENS, D_MODEL, VOCAB)?;
    layer::<f16, f16>(bench, "in_proj", TOKENS, D_MODEL, 2 * D_INNER)?;
    for precision in [Precision::Exact, Precision::Tf32] {
        let shape = Shape::dense(Layout::Nn, TOKENS, 2 * D_INNER, D_MODEL);
        product::<f32, f32>(bench, &format!("gemm/in_proj/f32/{precision:?}"), shape, false, precision)?;
    }
    Ok(())
}

/// The three products of a projection of `tokens` rows; `O`: type of the forward's result.
fn layer<T: Elem, O: Elem>(
    bench: &mut Bench,
    name: &str,
    tokens: usize,
    inner: usize,
    cols: usize,
) -> Result<()> {
    let name = |kind: &str| format!("gemm/{name}/{}/{kind}", T::NAME);
    let exact = Precision::Exact;
    let mut forward = Shape::dense(Layout::Nn, tokens, cols, inner);
    let mut d_input = Shape::dense(Layout::Nt, tokens, inner, cols);
    let mut d_weight = Shape::dense(Layout::Tn, inner, cols, tokens);
    if inner == DT_RANK {
        (forward.lda, d_input.ldc, d_weight.lda) = (X_WIDTH, X_WIDTH, X_WIDTH);
    }
    let adds = O::NAME == "f32" && cols == D_MODEL;
    product::<T, O>(bench, &name("forward"), forward, adds, exact)?;
    product::<T, T>(bench, &name("d_input"), d_input, false, exact)?;
    product::<T, f32>(bench, &name("d_weight"), d_weight, true, exact)
}

fn product<T: Elem, O: Elem>(
    bench: &mut Bench,
    name: &str,
    s: Shape,
    accumulate: bool,
    precision: Precision,
) -> Result<()> {
    if !bench.wants(name) {
        return Ok(());
    }
    let gpu = bench.gpu().clone();
    let (rows_a, rows_b) =
        (if s.layout == Layout::Tn { s.k } else { s.m }, if s.layout == Layout::Nt { s.n } else { s.k });
    let (a, b) = (random::<T>(&gpu, rows_a * s.lda, 1.0)?, random::<T>(&gpu, rows_b * s.ldb, 0.02)?);
    let mut c = DeviceBuf::<O>::zeros(&gpu, s.m * s.ldc)?;
    let mut turns = DeviceBuf::<i32>::zeros(&gpu, 1 << 16)?;
    let flops = 2 * s.m * s.n * s.k;
    let writes = if accumulate { 2 } else { 1 };
    let bytes = (s.m * s.k + s.n * s.k) * size_of::<T>() + writes * s.m * s.n * size_of::<O>();
    let memory_bound = size_of::<T>() == 2 && bytes as f64 / bench.bandwidth > flops as f64 / 790e6;
    let work = match (memory_bound, size_of::<T>()) {
        (true, _) => Work::Bytes(bytes),
        (false, 2) => Work::Flops(flops),
        _ => Work::FlopsF32(flops),
    };
    bench.line(name, work, |kernels| {
        let call = Gemm {
            shape: s,
            a: a.view(),
            b: b.view(),
            bias: None,
            c: c.view_mut(),
            accumulate,
            precision,
            turns: turns.view_mut(),
        };
        call.launch(kernels)
    })
}
