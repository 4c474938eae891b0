use crate::support::{Test, close, draws, poisoned, rounding, wide};
use half::{bf16, f16};
use mamba_cuda::DeviceBuf;
use mamba_kernels::conv::{ConvBackward, ConvForward, ConvShape};
use mamba_kernels::fold::{Fold, FoldParts};
use mamba_kernels::{Elem, Kernels, Launch};
use mamba_model::oracle::conv::Conv;
use std::marker::PhantomData;

/// (batch, steps, channels, width): every width, windows shorter than it, whole tiles and tails, channels that are no vectors.
const SIZES: [(usize, usize, usize, usize); 20] = [
    (1, 1, 8, 4),
    (2, 2, 24, 4),
    (2, 64, 96, 4),
    (3, 7, 24, 3),
    (1, 1, 8, 2),
    (2, 65, 24, 2),
    (1, 257, 24, 4),
    (2, 31, 5, 1),
    (1, 33, 16, 5),
    (2, 70, 10, 6),
    (1, 20, 9, 7),
    (2, 40, 12, 8),
    (1, 3, 8, 8),
    (1, 300, 136, 4),
    (2, 100, 264, 3),
    (3, 192, 40, 2),
    (2, 48, 130, 4),
    (2, 73, 33, 4),
    (5, 1, 40, 4),
    (1, 8, 8, 3),
];

/// (name, test) of the convolution.
pub fn trials() -> Vec<(String, Test)> {
    let mut all: Vec<(String, Test)> = Vec::new();
    for size in SIZES {
        for packed in [false, true] {
            let name = |kind: &str| format!("conv/{kind}/{size:?}{}", if packed { "/packed" } else { "" });
            all.push((name("f32"), Box::new(move |k| run::<f32>(k, size, packed))));
            all.push((name("bf16"), Box::new(move |k| run::<bf16>(k, size, packed))));
            all.push((name("f16"), Box::new(move |k| run::<f16>(k, size, packed))));
        }
    }
    for width in 1..=8 {
        all.push((format!("conv/windows/{width}/f32"), Box::new(move |k| windows::<f32>(k, width))));
        all.push((format!("conv/windows/{width}/bf16"), Box::new(move |k| windows::<bf16>(k, width))));
    }
    all
}

/// Output and state after one window of `batch` sequences.
fn forward<T: Elem>(
    kernels: &Kernels,
    shape: ConvShape,
    x: &[T],
    taps: [&[f32]; 2],
    state: &[f32],
) -> Result<(Vec<T>, Vec<f32>), String> {
    let text = |e: mamba_kernels::KernelError| e.to_string();
    let up = |e: mamba_cuda::CudaError| e.to_string();
    let (gpu, stream) = (kernels.gpu(), kernels.gpu().compute());
    let x = DeviceBuf::from_host(gpu, x).map_err(up)?;
    let [weight, bias] = taps.map(|t| DeviceBuf::from_host(gpu, t).map_err(up));
    let (weight, bias, state) = (weight?, bias?, DeviceBuf::from_host(gpu, state).map_err(up)?);
    let mut out = poisoned::<T>(gpu, shape.batch * shape.seq_len * shape.channels).map_err(text)?;
    let mut state_out = poisoned::<f32>(gpu, shape.state_len()).map_err(text)?;
    let call = ConvForward {
        x: x.view(),
        weight: weight.view(),
        bias: Some(bias.view()),
        reset: None,
        state_in: Some(state.view()),
        out: out.view_mut(),
        state_out: Some(state_out.view_mut()),
        args: shape.args(),
        shape,
        marker: PhantomData,
    };
    call.launch(kernels).map_err(text)?;
    Ok((out.to_host(stream).map_err(up)?, state_out.to_host(stream).map_err(up)?))
}

/// A sequence in windows of 1, 1, 2, 3, 5, … steps has the bits that it has in one window among other sequences.
fn windows<T: Elem>(kernels: &Kernels, width: usize) -> Result<(), String> {
    let (batch, seq_len, channels) = (2, 60, 24);
    let shape =
        |batch, seq_len| ConvShape { batch, seq_len, channels, width, ld_x: channels, ld_dx: channels };
    let row = seq_len * channels;
    let (x, all) = (draws::<T>("x", batch * row), shape(batch, seq_len));
    let (weight, bias) = (draws::<f32>("weight", channels * width), draws::<f32>("bias", channels));
    let state = draws::<f32>("state", all.state_len());
    let (want, want_state) = forward(kernels, all, &x, [&weight, &bias], &state)?;
    let (mut got, mut carried) = (Vec::new(), state[all.state_len() / 2..].to_vec());
    for steps in [1, 1, 2, 3, 5, 24, 24 - 1, 1] {
        let start = row + got.len();
        let window = &x[start..start + steps * channels];
        let (out, next) = forward(kernels, shape(1, steps), window, [&weight, &bias], &carried)?;
        got.extend(out);
        carried = next;
    }
    let same = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
    if got.len() != row || !same(&wide(&got), &wide(&want[row..])) {
        return Err("windows differ from the whole".to_owned());
    }
    match same(&wide(&carried), &wide(&want_state[all.state_len() / 2..])) {
        true => Ok(()),
        false => Err("carried states differ".to_owned()),
    }
}

fn run<T: Elem>(
    kernels: &Kernels,
    (batch, seq_len, channels, width): (usize, usize, usize, usize),
    packed: bool,
) -> Result<(), String> {
    let text = |e: mamba_kernels::KernelError| e.to_string();
    let up = |e: mamba_cuda::CudaError| e.to_string();
    let (gpu, stream, marker) = (kernels.gpu(), kernels.gpu().compute(), PhantomData);
    let (tokens, ld) = (batch * seq_len, 2 * channels);
    let shape = ConvShape { batch, seq_len, channels, width, ld_x: ld, ld_dx: ld };
    let xz = draws::<T>("xz", tokens * ld);
    let (weight, bias) = (draws::<f32>("weight", channels * width), draws::<f32>("bias", channels));
    let state = draws::<f32>("state", shape.state_len());
    let (d1, d2) = (draws::<T>("d1", tokens * channels), draws::<T>("d2", tokens * channels));
    let reset: Vec<u8> = (0..tokens).map(|i| u8::from(packed && i % 9 == 5)).collect();
    let (dxz, dd1, dd2) = (
        DeviceBuf::from_host(gpu, &xz).map_err(up)?,
        DeviceBuf::from_host(gpu, &d1).map_err(up)?,
        DeviceBuf::from_host(gpu, &d2).map_err(up)?,
    );
    let f32s = |x: &[f32]| DeviceBuf::from_host(gpu, x).map_err(up);
    let (dw, db, ds) = (f32s(&weight)?, f32s(&bias)?, f32s(&state)?);
    let dreset = DeviceBuf::from_host(gpu, &reset).map_err(up)?;
    let mut out = poisoned::<T>(gpu, tokens * channels).map_err(text)?;
    let mut state_out = poisoned::<f32>(gpu, shape.state_len()).map_err(text)?;
    let forward = ConvForward {
        x: dxz.view(),
        weight: dw.view(),
        bias: Some(db.view()),
        reset: packed.then(|| dreset.view()),
        state_in: Some(ds.view()),
        out: out.view_mut(),
        state_out: Some(state_out.view_mut()),
        args: shape.args(),
        shape,
        marker,
    };
    forward.launch(kernels).map_err(text)?;
    let mut d_x = poisoned::<T>(gpu, tokens * ld).map_err(text)?;
    let mut partial = poisoned::<f32>(gpu, shape.partial_len()).map_err(text)?;
    let backward = ConvBackward {
        x: dxz.view(),
        weight: dw.view(),
        bias: Some(db.view()),
        reset: packed.then(|| dreset.view()),
        state_in: Some(ds.view()),
        d_out: dd1.view(),
        d_out2: Some(dd2.view()),
        d_x: d_x.view_mut(),
        partial: partial.view_mut(),
        args: shape.args(),
        shape,
        marker,
    };
    backward.launch(kernels).map_err(text)?;
    let mut d_weight = DeviceBuf::<f32>::zeros(gpu, channels * width).map_err(up)?;
    let taps = Fold {
        len: channels * width,
        cols: width,
        row_stride: width + 1,
        ..Fold::dense(shape.parts(), channels * (width + 1))
    };
    FoldParts::new(partial.view(), d_weight.view_mut(), &[taps])
        .map_err(text)?
        .launch(kernels)
        .map_err(text)?;

    let x: Vec<f64> = wide(&xz).chunks(ld).flat_map(|row| row[..channels].to_vec()).collect();
    let (w, b, s) = (wide(&weight), wide(&bias), wide(&state));
    let conv = Conv {
        batch,
        seq_len,
        channels,
        width,
        x: &x,
        weight: &w,
        bias: Some(&b),
        state: &s,
        reset: packed.then_some(&reset[..]),
    };
    let want = conv.forward();
    let d_out: Vec<f64> = wide(&d1).iter().zip(wide(&d2)).map(|(a, b)| a + b).collect();
    let g = conv.backward(&want.pre, &d_out, None);
    close("out", &wide(&out.to_host(stream).map_err(up)?), &want.out, rounding::<T>())?;
    if width > 1 {
        close("state", &wide(&state_out.to_host(stream).map_err(up)?), &want.state, 1e-12)?;
    }
    let host_dx = wide(&d_x.to_host(stream).map_err(up)?);
    let got: Vec<f64> = host_dx.chunks(ld).flat_map(|row| row[..channels].to_vec()).collect();
    close("d_x", &got, &g.x, rounding::<T>())?;
    // f32 sums; measured at most 2.5e-7.
    close("d_weight", &wide(&d_weight.to_host(stream).map_err(up)?), &g.weight, 2e-6)?;
    match host_dx.chunks(ld).all(|row| row[channels..].iter().all(|v| v.is_nan())) {
        true => Ok(()),
        false => Err("wrote outside its columns".to_owned()),
    }
}
