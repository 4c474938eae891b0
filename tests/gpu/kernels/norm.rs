use crate::support::{Test, bits, close, draws, poisoned, rounding, wide};
use half::{bf16, f16};
use mamba_cuda::DeviceBuf;
use mamba_kernels::fold::FoldParts;
use mamba_kernels::norm::{RmsNormBackward, RmsNormForward, parts};
use mamba_kernels::{Elem, Kernels, Launch, Val};
use mamba_model::oracle::ops::{rmsnorm, rmsnorm_backward};
use std::marker::PhantomData;

const EPS: f32 = 1e-5;
/// (rows, columns): every plan, its edges, odd widths, more rows than one pass of the blocks takes.
const SIZES: [(usize, usize); 17] = [
    (1, 1),
    (3, 5),
    (1000, 24),
    (33, 128),
    (5, 130),
    (7, 256),
    (129, 384),
    (9, 388),
    (2500, 768),
    (64, 772),
    (65, 1024),
    (17, 1536),
    (9, 2048),
    (700, 2047),
    (5, 2560),
    (3, 8192),
    (2, 8191),
];

/// (name, test) of RMSNorm.
pub fn trials() -> Vec<(String, Test)> {
    let mut all: Vec<(String, Test)> = Vec::new();
    for size in SIZES {
        all.push((format!("norm/f32/{size:?}"), Box::new(move |k| run::<f32, f32>(k, size))));
        all.push((format!("norm/bf16/{size:?}"), Box::new(move |k| run::<bf16, bf16>(k, size))));
        all.push((format!("norm/f16/{size:?}"), Box::new(move |k| run::<f16, f16>(k, size))));
        all.push((format!("norm/bf16_f32/{size:?}"), Box::new(move |k| run::<bf16, f32>(k, size))));
        all.push((format!("norm/f16_f32/{size:?}"), Box::new(move |k| run::<f16, f32>(k, size))));
    }
    all.push(("norm/a_row_does_not_depend_on_the_others".to_owned(), Box::new(rows_alone)));
    all.push(("norm/nan_stays".to_owned(), Box::new(nan_stays)));
    all
}

/// Results of a forward: sum, out, rstd.
type Forward<O> = (Vec<f32>, Vec<O>, Vec<f32>);

fn forward<T: Elem, O: Elem>(
    kernels: &Kernels,
    dim: usize,
    residual: &[f32],
    add: Option<&[T]>,
    weight: &[f32],
) -> Result<Forward<O>, String> {
    let text = |e: mamba_kernels::KernelError| e.to_string();
    let up = |e: mamba_cuda::CudaError| e.to_string();
    let (gpu, stream) = (kernels.gpu(), kernels.gpu().compute());
    let (cells, rows) = (residual.len(), residual.len() / dim);
    let residual = DeviceBuf::from_host(gpu, residual).map_err(up)?;
    let weight = DeviceBuf::from_host(gpu, weight).map_err(up)?;
    let add = add.map(|a| DeviceBuf::from_host(gpu, a)).transpose().map_err(up)?;
    let mut sum = poisoned::<f32>(gpu, cells).map_err(text)?;
    let mut out = poisoned::<O>(gpu, cells).map_err(text)?;
    let mut rstd = poisoned::<f32>(gpu, rows).map_err(text)?;
    RmsNormForward {
        residual: residual.view(),
        add: add.as_ref().map(DeviceBuf::view),
        weight: weight.view(),
        sum: add.is_some().then(|| sum.view_mut()),
        out: out.view_mut(),
        rstd: rstd.view_mut(),
        eps: Val(EPS),
        rows: Val(rows as i64),
        dim: Val(dim as i32),
        marker: PhantomData,
    }
    .launch(kernels)
    .map_err(text)?;
    let sum = if add.is_some() { &sum } else { &residual };
    Ok((
        sum.to_host(stream).map_err(up)?,
        out.to_host(stream).map_err(up)?,
        rstd.to_host(stream).map_err(up)?,
    ))
}

fn run<T: Elem, O: Elem>(kernels: &Kernels, (rows, dim): (usize, usize)) -> Result<(), String> {
    let cells = rows * dim;
    let residual = draws::<f32>("residual", cells);
    let (add, weight) = (draws::<T>("add", cells), draws::<f32>("weight", dim));
    for with_add in [true, false] {
        let added = with_add.then_some(&add[..]);
        let (sum, out, rstd) = forward::<T, O>(kernels, dim, &residual, added, &weight)?;
        let want: Vec<f32> = match with_add {
            true => residual.iter().zip(&add).map(|(r, a)| r + a.to_f32()).collect(),
            false => residual.clone(),
        };
        if bits(&sum) != bits(&want) {
            return Err("the residual sum is not exact".to_owned());
        }
        let (y, rms) = rmsnorm(&wide(&sum), &wide(&weight), f64::from(EPS));
        close("out", &wide(&out), &y, rounding::<O>())?;
        let inverse: Vec<f64> = rms.iter().map(|r| 1.0 / r).collect();
        close("rstd", &wide(&rstd), &inverse, 1e-6)?;
        backward::<T, O>(kernels, dim, &sum, &weight, &rstd, with_add)?;
    }
    Ok(())
}

fn backward<T: Elem, O: Elem>(
    kernels: &Kernels,
    dim: usize,
    sum: &[f32],
    weight: &[f32],
    rstd: &[f32],
    accumulate: bool,
) -> Result<(), String> {
    let text = |e: mamba_kernels::KernelError| e.to_string();
    let up = |e: mamba_cuda::CudaError| e.to_string();
    let (gpu, stream, marker) = (kernels.gpu(), kernels.gpu().compute(), PhantomData);
    let (cells, rows) = (sum.len(), rstd.len());
    let d_out = draws::<O>("d_out", cells);
    let (old, old_weight) = (draws::<f32>("old", cells), draws::<f32>("old weight", dim));
    let (x, r) = (DeviceBuf::from_host(gpu, sum).map_err(up)?, DeviceBuf::from_host(gpu, rstd).map_err(up)?);
    let w = DeviceBuf::from_host(gpu, weight).map_err(up)?;
    let d = DeviceBuf::from_host(gpu, &d_out).map_err(up)?;
    let mut seen = Vec::new();
    for _ in 0..2 {
        let mut d_residual = match accumulate {
            true => DeviceBuf::from_host(gpu, &old).map_err(up)?,
            false => poisoned::<f32>(gpu, cells).map_err(text)?,
        };
        let mut d_add = poisoned::<T>(gpu, cells).map_err(text)?;
        let mut partial = poisoned::<f32>(gpu, parts(rows, dim) * dim).map_err(text)?;
        let mut d_weight = DeviceBuf::from_host(gpu, &old_weight).map_err(up)?;
        RmsNormBackward {
            residual: x.view(),
            rstd: r.view(),
            weight: w.view(),
            d_out: d.view(),
            d_residual: d_residual.view_mut(),
            d_add: Some(d_add.view_mut()),
            partial: partial.view_mut(),
            accumulate: Val(i32::from(accumulate)),
            rows: Val(rows as i64),
            dim: Val(dim as i32),
            marker,
        }
        .launch(kernels)
        .map_err(text)?;
        FoldParts {
            partial: partial.view(),
            out: d_weight.view_mut(),
            len: Val(dim as i64),
            parts: Val(parts(rows, dim) as i32),
            stride: Val(dim as i64),
            cols: Val(dim as i32),
            row_stride: Val(dim as i64),
            marker: PhantomData,
        }
        .launch(kernels)
        .map_err(text)?;
        let d_residual = d_residual.to_host(stream).map_err(up)?;
        let copy: Vec<T> = d_residual.iter().map(|&v| T::from_f32(v)).collect();
        if bits(&d_add.to_host(stream).map_err(up)?) != bits(&copy) {
            return Err("the copy of the residual gradient is not its rounding".to_owned());
        }
        seen.push((d_residual, d_weight.to_host(stream).map_err(up)?));
    }
    if seen.windows(2).any(|s| bits(&s[0].0) != bits(&s[1].0) || bits(&s[0].1) != bits(&s[1].1)) {
        return Err("two runs differ".to_owned());
    }
    let rms: Vec<f64> = sum
        .chunks(dim)
        .map(|r| (r.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / dim as f64 + f64::from(EPS)).sqrt())
        .collect();
    let (mut d_x, mut d_w) = rmsnorm_backward(&wide(sum), &wide(weight), &rms, &wide(&d_out));
    if accumulate {
        d_x.iter_mut().zip(&old).for_each(|(d, o)| *d += f64::from(*o));
    }
    d_w.iter_mut().zip(&old_weight).for_each(|(d, o)| *d += f64::from(*o));
    close("d_residual", &wide(&seen[0].0), &d_x, 2e-6)?;
    close("d_weight", &wide(&seen[0].1), &d_w, 2e-6)
}

fn rows_alone(kernels: &Kernels) -> Result<(), String> {
    for dim in [130, 768, 2048] {
        let residual = draws::<f32>("rows", 37 * dim);
        let weight = draws::<f32>("weight", dim);
        let (_, all, _) = forward::<f32, f32>(kernels, dim, &residual, None, &weight)?;
        for row in [0, 17, 36] {
            let at = row * dim..(row + 1) * dim;
            let (_, one, _) = forward::<f32, f32>(kernels, dim, &residual[at.clone()], None, &weight)?;
            if bits(&one) != bits(&all[at]) {
                return Err(format!("row {row} of {dim} columns differs alone"));
            }
        }
    }
    Ok(())
}

fn nan_stays(kernels: &Kernels) -> Result<(), String> {
    for bad in [f32::NAN, f32::INFINITY] {
        let (dim, weight) = (96, draws::<f32>("weight", 96));
        let mut residual = draws::<f32>("rows", 3 * dim);
        residual[dim + 5] = bad;
        let (_, out, _) = forward::<f32, f32>(kernels, dim, &residual, None, &weight)?;
        let finite = |r: std::ops::Range<usize>| out[r].iter().all(|v| v.is_finite());
        if !out[dim + 5].is_nan() || !finite(0..dim) || !finite(2 * dim..3 * dim) {
            return Err(format!("{bad} does not show in its own row alone"));
        }
    }
    Ok(())
}
