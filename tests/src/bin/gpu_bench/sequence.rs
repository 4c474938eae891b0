//! Convolution and scan over the sequences of a window.

use crate::{Bench, D_INNER, TOKENS, Work, random};
use half::{bf16, f16};
use mamba_cuda::DeviceBuf;
use mamba_kernels::conv::{ConvBackward, ConvForward, ConvShape};
use mamba_kernels::scan::{FoldStates, ScanBackward, ScanForward, ScanShape, Segments};
use mamba_kernels::{Elem, Launch, Result, Val};
use std::marker::PhantomData;

const SEQ_LEN: usize = 2048;
const STATES: usize = 16;
const DT_RANK: usize = 48;

/// Four taps over half of in_proj's rows.
pub fn convolution(bench: &mut Bench) -> Result<()> {
    conv::<bf16>(bench)?;
    conv::<f16>(bench)?;
    conv::<f32>(bench)
}

fn conv<T: Elem>(bench: &mut Bench) -> Result<()> {
    let (forward, backward) = (format!("conv/forward/{}", T::NAME), format!("conv/backward/{}", T::NAME));
    if !bench.wants(&forward) && !bench.wants(&backward) {
        return Ok(());
    }
    let (gpu, ld, marker) = (bench.gpu().clone(), 2 * D_INNER, PhantomData);
    let shape = ConvShape {
        batch: TOKENS / SEQ_LEN,
        seq_len: SEQ_LEN,
        channels: D_INNER,
        width: 4,
        ld_x: ld,
        ld_dx: ld,
    };
    let (xz, d_out) = (random::<T>(&gpu, TOKENS * ld, 1.0)?, random::<T>(&gpu, TOKENS * D_INNER, 1.0)?);
    let d_second = random::<T>(&gpu, TOKENS * D_INNER, 1.0)?;
    let (weight, bias) = (random::<f32>(&gpu, D_INNER * 4, 0.5)?, random::<f32>(&gpu, D_INNER, 0.1)?);
    let mut out = DeviceBuf::<T>::zeros(&gpu, TOKENS * D_INNER)?;
    let mut d_x = DeviceBuf::<T>::zeros(&gpu, TOKENS * ld)?;
    let mut partial = DeviceBuf::<f32>::zeros(&gpu, shape.partial_len())?;
    let cells = TOKENS * D_INNER * size_of::<T>();
    bench.line(&forward, Work::Bytes(2 * cells), |kernels| {
        let call = ConvForward {
            x: xz.view(),
            weight: weight.view(),
            bias: Some(bias.view()),
            reset: None,
            state_in: None,
            out: out.view_mut(),
            state_out: None,
            args: shape.args(),
            shape,
            marker,
        };
        call.launch(kernels)
    })?;
    // The gradient of the output alone, and in two parts as a model has it.
    let mut line = |name: &str, d_out2: Option<&DeviceBuf<T>>| {
        let work = Work::Bytes((3 + usize::from(d_out2.is_some())) * cells);
        bench.line(name, work, |kernels| {
            let call = ConvBackward {
                x: xz.view(),
                weight: weight.view(),
                bias: Some(bias.view()),
                reset: None,
                state_in: None,
                d_out: d_out.view(),
                d_out2: d_out2.map(DeviceBuf::view),
                d_x: d_x.view_mut(),
                partial: partial.view_mut(),
                args: shape.args(),
                shape,
                marker,
            };
            call.launch(kernels)
        })
    };
    line(&backward, None)?;
    line(&format!("{backward}/two"), Some(&d_second))
}

/// 16 states a channel.
pub fn scan(bench: &mut Bench) -> Result<()> {
    scan_of::<bf16>(bench)?;
    scan_of::<f32>(bench)?;
    long_scan(bench)
}

/// One sequence of 65,536 tokens, which the forward cuts into segments.
fn long_scan(bench: &mut Bench) -> Result<()> {
    let name = "scan/long/forward/bf16";
    if !bench.wants(name) {
        return Ok(());
    }
    let (gpu, marker, seq_len) = (bench.gpu().clone(), PhantomData, 65_536);
    let (ld_z, ld_bc, cells) = (D_INNER, DT_RANK + 2 * STATES, seq_len * D_INNER);
    let shape =
        ScanShape { batch: 1, seq_len, channels: D_INNER, states: STATES, ld_u: D_INNER, ld_z, ld_bc };
    let (u, raw) = (random::<bf16>(&gpu, cells, 1.0)?, random::<bf16>(&gpu, cells, 0.5)?);
    let q = random::<bf16>(&gpu, seq_len * ld_bc, 1.0)?;
    let decay: Vec<f32> = (0..D_INNER * STATES).map(|i| -((i % STATES) as f32 + 1.0)).collect();
    let neg_a = DeviceBuf::from_host(&gpu, &decay)?;
    let bias = random::<f32>(&gpu, D_INNER, 0.5)?;
    let mut out = DeviceBuf::<bf16>::zeros(&gpu, cells)?;
    let mut saved = DeviceBuf::<f32>::zeros(&gpu, shape.saved_len())?;
    let mut entries = DeviceBuf::<f32>::zeros(&gpu, shape.entries_len())?;
    let mut sums = DeviceBuf::<f32>::zeros(&gpu, shape.sums_len())?;
    let b = q.view().slice(DT_RANK..seq_len * ld_bc)?;
    let c = q.view().slice(DT_RANK + STATES..seq_len * ld_bc)?;
    let (u, raw, neg_a, dt_bias) = (u.view(), raw.view(), neg_a.view(), bias.view());
    bench.line(name, Work::Exponentials(cells * STATES), |kernels| {
        let (h0, h_last, reset, args) = (None, None, None, shape.args());
        let (room, sums) = (entries.view_mut(), sums.view_mut());
        Segments { u, raw, b, neg_a, dt_bias, reset, h0, entries: room, sums, shape }.launch(kernels)?;
        let (h0, z, d) = (Some(entries.view()), u, dt_bias);
        let (out, saved) = (out.view_mut(), Some(saved.view_mut()));
        ScanForward { u, raw, z, b, c, neg_a, d, dt_bias, reset, h0, out, h_last, saved, args, shape, marker }
            .launch(kernels)
    })
}

fn scan_of<T: Elem>(bench: &mut Bench) -> Result<()> {
    let name = |kind: &str| format!("scan/{kind}/{}", T::NAME);
    if !["forward", "backward", "fold"].iter().any(|k| bench.wants(&name(k))) {
        return Ok(());
    }
    let (gpu, marker) = (bench.gpu().clone(), PhantomData);
    let (ld_z, ld_bc) = (2 * D_INNER, DT_RANK + 2 * STATES);
    let batch = TOKENS / SEQ_LEN;
    let shape =
        ScanShape { batch, seq_len: SEQ_LEN, channels: D_INNER, states: STATES, ld_u: D_INNER, ld_z, ld_bc };
    let cells = TOKENS * D_INNER;
    let (u, raw) = (random::<T>(&gpu, cells, 1.0)?, random::<T>(&gpu, cells, 0.5)?);
    let (xz, q) = (random::<T>(&gpu, TOKENS * ld_z, 1.0)?, random::<T>(&gpu, TOKENS * ld_bc, 1.0)?);
    let decay: Vec<f32> = (0..D_INNER * STATES).map(|i| -((i % STATES) as f32 + 1.0)).collect();
    let neg_a = DeviceBuf::from_host(&gpu, &decay)?;
    let (d, bias) = (random::<f32>(&gpu, D_INNER, 1.0)?, random::<f32>(&gpu, D_INNER, 0.5)?);
    let d_out = random::<T>(&gpu, cells, 1.0)?;
    let mut out = DeviceBuf::<T>::zeros(&gpu, cells)?;
    let mut saved = DeviceBuf::<f32>::zeros(&gpu, shape.saved_len())?;
    let z = xz.view().slice(D_INNER..TOKENS * ld_z)?;
    let b = q.view().slice(DT_RANK..TOKENS * ld_bc)?;
    let c = q.view().slice(DT_RANK + STATES..TOKENS * ld_bc)?;
    let (u, raw, neg_a, d, dt_bias) = (u.view(), raw.view(), neg_a.view(), d.view(), bias.view());
    let exponentials = cells * STATES;
    bench.line(&name("forward"), Work::Exponentials(exponentials), |kernels| {
        let (h0, h_last, reset, args) = (None, None, None, shape.args());
        let (out, saved) = (out.view_mut(), Some(saved.view_mut()));
        ScanForward { u, raw, z, b, c, neg_a, d, dt_bias, reset, h0, out, h_last, saved, args, shape, marker }
            .launch(kernels)
    })?;
    let mut d_cells = [
        DeviceBuf::<T>::zeros(&gpu, cells)?,
        DeviceBuf::<T>::zeros(&gpu, cells)?,
        DeviceBuf::<T>::zeros(&gpu, TOKENS * ld_z)?,
    ];
    let mut partial_bc = DeviceBuf::<f32>::zeros(&gpu, shape.partial_len())?;
    let mut partial_a = DeviceBuf::<f32>::zeros(&gpu, shape.state_len())?;
    let mut partial_d = DeviceBuf::<f32>::zeros(&gpu, batch * D_INNER)?;
    let mut partial_bias = DeviceBuf::<f32>::zeros(&gpu, batch * D_INNER)?;
    bench.line(&name("backward"), Work::Exponentials(exponentials), |kernels| {
        let [d_u, d_raw, d_z] = &mut d_cells;
        let call = ScanBackward {
            u,
            raw,
            z,
            b,
            c,
            neg_a,
            d,
            dt_bias,
            reset: None,
            saved: saved.view(),
            d_out: d_out.view(),
            d_u: d_u.view_mut(),
            d_raw: d_raw.view_mut(),
            d_z: d_z.view_mut(),
            partial_bc: partial_bc.view_mut(),
            partial_a: partial_a.view_mut(),
            partial_d: partial_d.view_mut(),
            partial_bias: partial_bias.view_mut(),
            args: shape.args(),
            shape,
            marker: PhantomData,
        };
        call.launch(kernels)
    })?;
    let mut d_bc = DeviceBuf::<T>::zeros(&gpu, TOKENS * 2 * STATES)?;
    let bytes = shape.partial_len() * 4 + TOKENS * 2 * STATES * size_of::<T>();
    bench.line(&name("fold"), Work::Bytes(bytes), |kernels| {
        let call = FoldStates {
            partial: partial_bc.view(),
            d_bc: d_bc.view_mut(),
            tokens: Val(TOKENS as i64),
            blocks: Val(shape.channel_blocks() as i32),
            states: Val(STATES as i32),
            padded: Val(shape.padded_states() as i32),
            ld: Val(2 * STATES as i64),
            shape,
            marker: PhantomData,
        };
        call.launch(kernels)
    })
}
