//! Kernels that memory bounds: norm, loss, embedding, casts and sums, the optimizer's tail.

use crate::{Bench, D_MODEL, TOKENS, VOCAB, Work, random};
use half::bf16;
use mamba_cuda::DeviceBuf;
use mamba_kernels::elementwise::{Cast, ColumnSums, Fill};
use mamba_kernels::embedding::{EmbeddingBackward, EmbeddingForward};
use mamba_kernels::fold::{Fold, FoldParts};
use mamba_kernels::loss::CrossEntropy;
use mamba_kernels::norm::{RmsNormBackward, RmsNormForward, parts};
use mamba_kernels::optim::{AdamW, Decide, GradSums, GroupTable, TailInputs, TailState, blocks};
use mamba_kernels::{Elem, Launch, Result, Val};
use std::marker::PhantomData;

/// Tokens of a piece of the head.
const HEAD_TOKENS: usize = 2048;
/// Parameters of the model, a multiple of 64.
const PARAMS: usize = 129_135_360;
/// Norms that are kept.
const NORMS: usize = 128;

/// RMSNorm over the residual stream, with and without the addition in front.
pub fn norm(bench: &mut Bench) -> Result<()> {
    norm_of::<bf16, bf16>(bench, "bf16")?;
    norm_of::<f32, f32>(bench, "f32")?;
    norm_of::<bf16, f32>(bench, "bf16_f32")
}

fn norm_of<T: Elem, O: Elem>(bench: &mut Bench, types: &str) -> Result<()> {
    if !bench.wants("norm") {
        return Ok(());
    }
    let (gpu, cells, marker) = (bench.gpu().clone(), TOKENS * D_MODEL, PhantomData);
    let (x, add) = (random::<f32>(&gpu, cells, 1.0)?, random::<T>(&gpu, cells, 1.0)?);
    let (weight, d_out) = (random::<f32>(&gpu, D_MODEL, 1.0)?, random::<O>(&gpu, cells, 1.0)?);
    let (mut sum, mut out) = (DeviceBuf::<f32>::zeros(&gpu, cells)?, DeviceBuf::<O>::zeros(&gpu, cells)?);
    let mut rstd = random::<f32>(&gpu, TOKENS, 1.0)?;
    let (rows, dim, eps) = (Val(TOKENS as i64), Val(D_MODEL as i32), Val(1e-5));
    let (t, o) = (size_of::<T>(), size_of::<O>());
    for fused in [false, true] {
        let bytes = cells * (4 + o + if fused { t + 4 } else { 0 });
        let name = format!("norm/forward{}/{types}", if fused { "_add" } else { "" });
        bench.line(&name, Work::Bytes(bytes), |kernels| {
            let call = RmsNormForward {
                residual: x.view(),
                add: fused.then(|| add.view()),
                weight: weight.view(),
                sum: fused.then(|| sum.view_mut()),
                out: out.view_mut(),
                rstd: rstd.view_mut(),
                eps,
                rows,
                dim,
                marker,
            };
            call.launch(kernels)
        })?;
    }
    let count = parts(TOKENS, D_MODEL);
    let mut d_residual = DeviceBuf::<f32>::zeros(&gpu, cells)?;
    let mut d_add = DeviceBuf::<T>::zeros(&gpu, cells)?;
    let mut partial = DeviceBuf::<f32>::zeros(&gpu, count * D_MODEL)?;
    let mut d_weight = DeviceBuf::<f32>::zeros(&gpu, D_MODEL)?;
    for copied in [false, true] {
        let bytes = cells * (4 + o + 8 + if copied { t } else { 0 });
        let name = format!("norm/backward{}/{types}", if copied { "_copy" } else { "" });
        bench.line(&name, Work::Bytes(bytes), |kernels| {
            let call = RmsNormBackward {
                residual: x.view(),
                rstd: rstd.view(),
                weight: weight.view(),
                d_out: d_out.view(),
                d_residual: d_residual.view_mut(),
                d_add: copied.then(|| d_add.view_mut()),
                partial: partial.view_mut(),
                accumulate: Val(1),
                rows,
                dim,
                marker,
            };
            call.launch(kernels)?;
            let fold = FoldParts::new(partial.view(), d_weight.view_mut(), &[Fold::dense(count, D_MODEL)])?;
            fold.launch(kernels)
        })?;
    }
    Ok(())
}

/// Cross-entropy with its gradient over a piece of the tokens.
pub fn loss(bench: &mut Bench) -> Result<()> {
    if !bench.wants("loss") {
        return Ok(());
    }
    let (gpu, cells) = (bench.gpu().clone(), HEAD_TOKENS * VOCAB);
    let logits = random::<f32>(&gpu, cells, 2.0)?;
    let targets: Vec<i32> = (0..HEAD_TOKENS).map(|i| (i * 7919 % VOCAB) as i32).collect();
    let (targets, scale) = (DeviceBuf::from_host(&gpu, &targets)?, DeviceBuf::from_host(&gpu, &[1.0f32])?);
    let mut nll = DeviceBuf::<f32>::zeros(&gpu, HEAD_TOKENS)?;
    let mut d_logits = DeviceBuf::<bf16>::zeros(&gpu, cells)?;
    for gradient in [true, false] {
        let name = if gradient { "loss/with_gradient/bf16" } else { "loss/alone/bf16" };
        bench.line(name, Work::Bytes(cells * if gradient { 6 } else { 4 }), |kernels| {
            let call = CrossEntropy {
                logits: logits.view(),
                targets: targets.view(),
                weights: None,
                scale: scale.view(),
                nll: nll.view_mut(),
                d_logits: gradient.then(|| d_logits.view_mut()),
                columns: Val(VOCAB as i64),
                rows: HEAD_TOKENS,
                marker: PhantomData,
            };
            call.launch(kernels)
        })?;
    }
    Ok(())
}

/// Look-up and its adjoint; the ids of the second line follow a power law, as text does.
pub fn embedding(bench: &mut Bench) -> Result<()> {
    if !bench.wants("embedding") {
        return Ok(());
    }
    let (gpu, cells) = (bench.gpu().clone(), TOKENS * D_MODEL);
    let table = random::<bf16>(&gpu, VOCAB * D_MODEL, 1.0)?;
    let d_out = random::<f32>(&gpu, cells, 1.0)?;
    let mut out = DeviceBuf::<f32>::zeros(&gpu, cells)?;
    let mut d_table = DeviceBuf::<f32>::zeros(&gpu, VOCAB * D_MODEL)?;
    let mut counts = DeviceBuf::<i32>::zeros(&gpu, VOCAB)?;
    let mut sorted = DeviceBuf::<i32>::zeros(&gpu, 2 * TOKENS)?;
    let mut edges = DeviceBuf::<f32>::zeros(&gpu, EmbeddingBackward::edge_len(TOKENS, D_MODEL))?;
    let even = |i: usize| (i * 7919 % VOCAB) as u32;
    let skewed = |i: usize| (VOCAB as f64).powf((i * 7919 % TOKENS) as f64 / TOKENS as f64) as u32 - 1;
    for (kind, ids) in
        [("even", (0..TOKENS).map(even).collect()), ("skewed", (0..TOKENS).map(skewed).collect::<Vec<u32>>())]
    {
        let mut distinct = ids.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let ids = DeviceBuf::from_host(&gpu, &ids)?;
        bench.line(&format!("embedding/forward/{kind}"), Work::Bytes(cells * 6), |kernels| {
            let call = EmbeddingForward {
                table: table.view(),
                ids: ids.view(),
                out: out.view_mut(),
                dim: Val(D_MODEL as i64),
                tokens: Val(TOKENS as i32),
                marker: PhantomData,
            };
            call.launch(kernels)
        })?;
        let bytes = cells * 4 + distinct.len() * D_MODEL * 8;
        bench.line(&format!("embedding/backward/{kind}"), Work::Bytes(bytes), |kernels| {
            let call = EmbeddingBackward {
                ids: ids.view(),
                d_out: d_out.view(),
                d_table: d_table.view_mut(),
                counts: counts.view_mut(),
                sorted: sorted.view_mut(),
                edges: edges.view_mut(),
                dim: D_MODEL,
            };
            call.launch(kernels)
        })?;
    }
    Ok(())
}

/// A cast and a fill of all parameters, the gradient of a bias.
pub fn elementwise(bench: &mut Bench) -> Result<()> {
    if !bench.wants("elementwise") {
        return Ok(());
    }
    let gpu = bench.gpu().clone();
    let (source, mut half) = (random::<f32>(&gpu, PARAMS, 1.0)?, DeviceBuf::<bf16>::zeros(&gpu, PARAMS)?);
    let len = Val(PARAMS as i64);
    bench.line("elementwise/cast/bf16", Work::Bytes(6 * PARAMS), |kernels| {
        Cast { input: source.view(), out: half.view_mut(), len, marker: PhantomData }.launch(kernels)
    })?;
    bench.line("elementwise/fill/bf16", Work::Bytes(2 * PARAMS), |kernels| {
        Fill { out: half.view_mut(), value: Val(0.0), len, marker: PhantomData }.launch(kernels)
    })?;
    let (rows, cols) = (TOKENS, 2 * D_MODEL);
    let parts = ColumnSums::<bf16>::parts(rows);
    let mut partial = DeviceBuf::<f32>::zeros(&gpu, parts * cols)?;
    bench.line("elementwise/column_sums/bf16", Work::Bytes(2 * rows * cols), |kernels| {
        let call = ColumnSums {
            x: half.view(),
            partial: partial.view_mut(),
            rows: Val(rows as i64),
            cols: Val(cols as i32),
            ld: Val(cols as i64),
            rows_per_part: Val(ColumnSums::<bf16>::rows_per_part(rows) as i64),
            marker: PhantomData,
        };
        call.launch(kernels)
    })
}

/// Norm, decision and update of all parameters.
pub fn optimizer(bench: &mut Bench) -> Result<()> {
    if !bench.wants("optim") {
        return Ok(());
    }
    let (gpu, count, marker) = (bench.gpu().clone(), blocks(PARAMS), PhantomData);
    let mut grads = random::<f32>(&gpu, PARAMS, 1e-3)?;
    let inputs = DeviceBuf::from_host(&gpu, &[settings()])?;
    let scored = DeviceBuf::from_host(&gpu, &[TailInputs { skip_z_score: 6.0, ..settings() }])?;
    let mut norms = DeviceBuf::<f64>::zeros(&gpu, NORMS)?;
    let mut state = DeviceBuf::from_host(&gpu, &[TailState::new(1.0)])?;
    let mut loss_scale = DeviceBuf::<f32>::zeros(&gpu, 1)?;
    let mut partial = DeviceBuf::<f64>::zeros(&gpu, count)?;
    let mut bad = DeviceBuf::<u32>::zeros(&gpu, count)?;
    let len = Val(PARAMS as i64);
    bench.line("optim/norm", Work::Bytes(4 * PARAMS), |kernels| {
        let call = GradSums {
            grads: grads.view(),
            inputs: inputs.view(),
            state: state.view(),
            partial: partial.view_mut(),
            bad: bad.view_mut(),
            len,
            marker,
        };
        call.launch(kernels)
    })?;
    // With the z-score the ring is full after as many launches.
    for (name, inputs) in [("optim/decide", &inputs), ("optim/decide_z_score", &scored)] {
        bench.line(name, Work::Bytes(12 * count), |kernels| {
            let call = Decide {
                partial: partial.view(),
                bad: bad.view(),
                control_norm: None,
                inputs: inputs.view(),
                state: state.view_mut(),
                norms: norms.view_mut(),
                loss_scale: loss_scale.view_mut(),
                blocks: Val(count as i64),
                capacity: Val(NORMS as u32),
                len: PARAMS,
                marker,
            };
            call.launch(kernels)
        })?;
    }
    state = DeviceBuf::from_host(
        &gpu,
        &[TailState {
            step: 1,
            inv_scale: 1.0,
            clip: 1.0,
            bc1: 10.0,
            bc2: 1000.0,
            applied: 1,
            ..TailState::new(1.0)
        }],
    )?;
    let table = GroupTable::new(PARAMS, std::iter::once(0..PARAMS / 128 * 64), [])?;
    let groups = DeviceBuf::from_host(&gpu, table.words())?;
    let mut params = random::<f32>(&gpu, PARAMS, 0.1)?;
    let (mut m, mut v) = (DeviceBuf::<f32>::zeros(&gpu, PARAMS)?, DeviceBuf::<f32>::zeros(&gpu, PARAMS)?);
    let mut shadow = DeviceBuf::<bf16>::zeros(&gpu, PARAMS)?;
    for shadowed in [true, false] {
        let name = if shadowed { "optim/adamw/bf16" } else { "optim/adamw/f32" };
        bench.line(name, Work::Bytes(PARAMS * if shadowed { 30 } else { 28 }), |kernels| {
            let call = AdamW {
                params: params.view_mut(),
                grads: grads.view(),
                m: m.view_mut(),
                v: v.view_mut(),
                shadow: shadowed.then(|| shadow.view_mut()),
                neg_a: None,
                groups: groups.view(),
                inputs: inputs.view(),
                state: state.view(),
                len,
                neg_a_len: 0,
                marker: PhantomData,
            };
            call.launch(kernels)
        })?;
    }
    let stream = gpu.compute();
    bench.line("optim/zero_gradients", Work::Bytes(4 * PARAMS), |_| {
        Ok(grads.view_mut().fill_bytes(0, stream)?)
    })
}

fn settings() -> TailInputs {
    TailInputs {
        beta1_exact: 0.9,
        beta2_exact: 0.999,
        clip_max: 1.0,
        control_clip_max: f64::INFINITY,
        skip_above: f64::MAX,
        skip_z_score: f64::INFINITY,
        deviation_floor: 0.05,
        grad_factor: 1.0,
        growth_factor: 2.0,
        backoff_factor: 0.5,
        lr: 1e-3,
        decay: 0.9999,
        beta1: 0.9,
        one_minus_beta1: 0.1,
        beta2: 0.999,
        one_minus_beta2: 0.001,
        eps: 1e-8,
        min_scale: 1.0,
        max_scale: f32::INFINITY,
        growth_interval: 2000,
        min_norms: 16,
        flags: 0,
    }
}
