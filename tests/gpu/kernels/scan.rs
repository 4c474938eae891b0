use crate::support::{Test, close, draws, poisoned, rounding, wide};
use half::{bf16, f16};
use mamba_cuda::DeviceBuf;
use mamba_kernels::fold::{Fold, FoldParts};
use mamba_kernels::scan::{FoldStates, ScanBackward, ScanForward, ScanShape, Segments};
use mamba_kernels::{Elem, Kernels, Launch, Val};
use mamba_model::oracle::scan::Scan;
use std::marker::PhantomData;

/// (batch, steps, channels, states)
const SIZES: [(usize, usize, usize, usize); 16] = [
    (1, 1, 8, 16),
    (2, 2, 24, 4),
    (1, 15, 40, 16),
    (3, 16, 24, 16),
    (2, 17, 5, 3),
    (1, 63, 33, 8),
    (2, 64, 32, 16),
    (1, 65, 64, 17),
    (2, 129, 16, 64),
    (1, 257, 24, 16),
    (1, 40, 8, 128),
    (2, 33, 6, 256),
    (1, 1000, 24, 16),
    (1, 50, 7, 1),
    // By segments.
    (2, 8193, 36, 16),
    (1, 10_300, 5, 7),
];

/// (name, test) of the scan.
pub fn trials() -> Vec<(String, Test)> {
    let mut all: Vec<(String, Test)> = Vec::new();
    for size in SIZES {
        for packed in [false, true] {
            let name = |kind: &str| format!("scan/{kind}/{size:?}{}", if packed { "/packed" } else { "" });
            all.push((name("f32"), Box::new(move |k| run::<f32>(k, size, packed))));
            all.push((name("bf16"), Box::new(move |k| run::<bf16>(k, size, packed))));
            all.push((name("f16"), Box::new(move |k| run::<f16>(k, size, packed))));
        }
    }
    all
}

/// Columns `from..from + n` of rows `ld` wide.
fn columns<T: Copy>(x: &[T], ld: usize, from: usize, n: usize) -> Vec<T> {
    x.chunks(ld).flat_map(|row| row[from..from + n].iter().copied()).collect()
}

fn run<T: Elem>(
    kernels: &Kernels,
    (batch, seq_len, channels, states): (usize, usize, usize, usize),
    packed: bool,
) -> Result<(), String> {
    let text = |e: mamba_kernels::KernelError| e.to_string();
    let up = |e: mamba_cuda::CudaError| e.to_string();
    let (gpu, stream) = (kernels.gpu(), kernels.gpu().compute());
    let (tokens, rank, marker) = (batch * seq_len, 3, PhantomData);
    let (ld_z, ld_bc) = (2 * channels, rank + 2 * states);
    let (xz, q, u) = (
        draws::<T>("xz", tokens * ld_z),
        draws::<T>("q", tokens * ld_bc),
        draws::<T>("u", tokens * channels),
    );
    let raw: Vec<T> =
        draws::<T>("raw", tokens * channels).iter().map(|v| T::from_f32(v.to_f32() * 1.5 - 2.0)).collect();
    let a: Vec<f32> = draws::<f32>("a", channels * states).iter().map(|v| -v.abs() * 2.0 - 0.05).collect();
    let (d, bias) = (draws::<f32>("d", channels), draws::<f32>("bias", channels));
    let (h0, d_out) = (draws::<f32>("h0", batch * channels * states), draws::<T>("d_out", tokens * channels));
    let reset: Vec<u8> = (0..tokens).map(|i| u8::from(packed && i % 11 == 4)).collect();
    let shape = ScanShape { batch, seq_len, channels, states, ld_u: channels, ld_z, ld_bc };

    let (dxz_in, dq_in, du_in, draw_in) = (
        DeviceBuf::from_host(gpu, &xz).map_err(up)?,
        DeviceBuf::from_host(gpu, &q).map_err(up)?,
        DeviceBuf::from_host(gpu, &u).map_err(up)?,
        DeviceBuf::from_host(gpu, &raw).map_err(up)?,
    );
    let f32s = |x: &[f32]| DeviceBuf::from_host(gpu, x).map_err(up);
    let (da, dd, dbias, dh0) = (f32s(&a)?, f32s(&d)?, f32s(&bias)?, f32s(&h0)?);
    let dreset = DeviceBuf::from_host(gpu, &reset).map_err(up)?;
    let dd_out = DeviceBuf::from_host(gpu, &d_out).map_err(up)?;
    let mut out = poisoned::<T>(gpu, tokens * channels).map_err(text)?;
    let mut h_last = poisoned::<f32>(gpu, shape.state_len()).map_err(text)?;
    let mut saved = poisoned::<f32>(gpu, shape.saved_len()).map_err(text)?;
    let z = dxz_in.view().slice(channels..tokens * ld_z).map_err(up)?;
    let b = dq_in.view().slice(rank..tokens * ld_bc).map_err(up)?;
    let c = dq_in.view().slice(rank + states..tokens * ld_bc).map_err(up)?;
    let mut entries = poisoned::<f32>(gpu, shape.entries_len()).map_err(text)?;
    let mut sums = poisoned::<f32>(gpu, shape.sums_len()).map_err(text)?;
    let before = Segments {
        u: du_in.view(),
        raw: draw_in.view(),
        b,
        neg_a: da.view(),
        dt_bias: dbias.view(),
        reset: packed.then(|| dreset.view()),
        h0: Some(dh0.view()),
        entries: entries.view_mut(),
        sums: sums.view_mut(),
        shape,
    };
    before.launch(kernels).map_err(text)?;
    let forward = ScanForward {
        u: du_in.view(),
        raw: draw_in.view(),
        z,
        b,
        c,
        neg_a: da.view(),
        d: dd.view(),
        dt_bias: dbias.view(),
        reset: packed.then(|| dreset.view()),
        h0: Some(if shape.segments() > 1 { entries.view() } else { dh0.view() }),
        out: out.view_mut(),
        h_last: Some(h_last.view_mut()),
        saved: Some(saved.view_mut()),
        args: shape.args(),
        shape,
        marker,
    };
    forward.launch(kernels).map_err(text)?;

    let mut grads_xz = poisoned::<T>(gpu, tokens * ld_z).map_err(text)?;
    let mut grads_q = poisoned::<T>(gpu, tokens * ld_bc).map_err(text)?;
    let (mut d_u, mut d_raw) = (
        poisoned::<T>(gpu, tokens * channels).map_err(text)?,
        poisoned::<T>(gpu, tokens * channels).map_err(text)?,
    );
    let mut partial_bc = poisoned::<f32>(gpu, shape.partial_len()).map_err(text)?;
    let mut partial_a = poisoned::<f32>(gpu, shape.state_len()).map_err(text)?;
    let (mut partial_d, mut partial_bias) = (
        poisoned::<f32>(gpu, batch * channels).map_err(text)?,
        poisoned::<f32>(gpu, batch * channels).map_err(text)?,
    );
    let backward = ScanBackward {
        u: du_in.view(),
        raw: draw_in.view(),
        z,
        b,
        c,
        neg_a: da.view(),
        d: dd.view(),
        dt_bias: dbias.view(),
        reset: packed.then(|| dreset.view()),
        saved: saved.view(),
        d_out: dd_out.view(),
        d_u: d_u.view_mut(),
        d_raw: d_raw.view_mut(),
        d_z: grads_xz.view_mut().slice(channels..tokens * ld_z).map_err(up)?,
        partial_bc: partial_bc.view_mut(),
        partial_a: partial_a.view_mut(),
        partial_d: partial_d.view_mut(),
        partial_bias: partial_bias.view_mut(),
        args: shape.args(),
        shape,
        marker,
    };
    backward.launch(kernels).map_err(text)?;
    fold_states(kernels, &shape, &partial_bc, &mut grads_q, rank)?;
    let mut d_a_log = DeviceBuf::<f32>::zeros(gpu, channels * states).map_err(up)?;
    FoldParts::new(partial_a.view(), d_a_log.view_mut(), &[Fold::dense(batch, channels * states)])
        .map_err(text)?
        .launch(kernels)
        .map_err(text)?;

    let wide_q = wide(&q);
    let (w_u, w_raw, w_z) = (wide(&u), wide(&raw), columns(&wide(&xz), ld_z, channels, channels));
    let (w_b, w_c) = (columns(&wide_q, ld_bc, rank, states), columns(&wide_q, ld_bc, rank + states, states));
    let (w_a, w_d, w_bias, w_h0) = (wide(&a), wide(&d), wide(&bias), wide(&h0));
    let scan = Scan {
        batch,
        seq_len,
        channels,
        states,
        u: &w_u,
        delta: &w_raw,
        a: &w_a,
        b: &w_b,
        c: &w_c,
        d: &w_d,
        delta_bias: &w_bias,
        z: Some(&w_z),
        h0: &w_h0,
        reset: packed.then_some(&reset[..]),
    };
    let want = scan.forward();
    let g = scan.backward(&want, &wide(&d_out), None);
    let bound = rounding::<T>();
    let host = |buf: &DeviceBuf<T>| Ok::<_, String>(wide(&buf.to_host(stream).map_err(up)?));
    let host32 = |buf: &DeviceBuf<f32>| Ok::<_, String>(wide(&buf.to_host(stream).map_err(up)?));
    close("out", &host(&out)?, &want.out, bound)?;
    // f32 sums; measured at most 1.3e-6.
    close("h_last", &host32(&h_last)?, &want.h_last, 5e-6)?;
    if shape.segments() > 1 {
        return Ok(()); // the limits below are of sums over short sequences
    }
    close("d_u", &host(&d_u)?, &g.u, bound)?;
    close("d_raw", &host(&d_raw)?, &g.delta, bound)?;
    close("d_z", &columns(&host(&grads_xz)?, ld_z, channels, channels), &g.z, bound)?;
    close("d_b", &columns(&host(&grads_q)?, ld_bc, rank, states), &g.b, bound)?;
    close("d_c", &columns(&host(&grads_q)?, ld_bc, rank + states, states), &g.c, bound)?;
    let want_a_log: Vec<f64> = g.a.iter().zip(&w_a).map(|(d, a)| d * a).collect();
    close("d_a_log", &host32(&d_a_log)?, &want_a_log, 5e-6)?;
    let over_batch = |x: Vec<f64>| {
        (0..channels).map(|c| (0..batch).map(|b| x[b * channels + c]).sum()).collect::<Vec<f64>>()
    };
    close("d_d", &over_batch(host32(&partial_d)?), &g.d, 5e-6)?;
    close("d_bias", &over_batch(host32(&partial_bias)?), &g.delta_bias, 5e-6)?;
    let untouched = columns(&host(&grads_xz)?, ld_z, 0, channels).iter().all(|v| v.is_nan());
    let untouched_q = columns(&host(&grads_q)?, ld_bc, 0, rank).iter().all(|v| v.is_nan());
    if untouched && untouched_q { Ok(()) } else { Err("wrote outside its columns".to_owned()) }
}

fn fold_states<T: Elem>(
    kernels: &Kernels,
    shape: &ScanShape,
    partial: &DeviceBuf<f32>,
    d_q: &mut DeviceBuf<T>,
    rank: usize,
) -> Result<(), String> {
    let (tokens, marker) = (shape.batch * shape.seq_len, PhantomData);
    let call = FoldStates {
        partial: partial.view(),
        d_bc: d_q.view_mut().slice(rank..tokens * shape.ld_bc).map_err(|e| e.to_string())?,
        tokens: Val(tokens as i64),
        blocks: Val(shape.channel_blocks() as i32),
        states: Val(shape.states as i32),
        padded: Val(shape.padded_states() as i32),
        ld: Val(shape.ld_bc as i64),
        shape: *shape,
        marker,
    };
    call.launch(kernels).map_err(|e| e.to_string())
}
