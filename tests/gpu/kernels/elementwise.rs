use crate::support::{Test, bits, close, draws, poisoned, wide};
use half::{bf16, f16};
use mamba_cuda::DeviceBuf;
use mamba_kernels::elementwise::{Add, AddBias, Cast, ColumnSums, Fill, Scale};
use mamba_kernels::fold::{Fold, FoldParts};
use mamba_kernels::{Elem, Kernels, Launch, Val};
use std::marker::PhantomData;

const LENGTHS: [usize; 6] = [1, 3, 4, 127, 1024, 1_000_003];

/// (name, test) of the elementwise kernels.
pub fn trials() -> Vec<(String, Test)> {
    let mut all: Vec<(String, Test)> = Vec::new();
    for len in LENGTHS {
        all.push((format!("elementwise/bf16/{len}"), Box::new(move |k| halves::<bf16>(k, len))));
        all.push((format!("elementwise/f16/{len}"), Box::new(move |k| halves::<f16>(k, len))));
        all.push((format!("elementwise/f32/{len}"), Box::new(move |k| pointwise::<f32>(k, len, 0))));
        all.push((
            format!("elementwise/f32/misplaced/{len}"),
            Box::new(move |k| pointwise::<f32>(k, len, 1)),
        ));
    }
    for size in [(1, 1), (3, 5), (64, 33), (1000, 80), (16_385, 96)] {
        all.push((format!("elementwise/columns/f32/{size:?}"), Box::new(move |k| columns::<f32>(k, size))));
        all.push((format!("elementwise/columns/bf16/{size:?}"), Box::new(move |k| columns::<bf16>(k, size))));
        all.push((format!("elementwise/columns/f16/{size:?}"), Box::new(move |k| columns::<f16>(k, size))));
    }
    all
}

fn halves<T: Elem>(kernels: &Kernels, len: usize) -> Result<(), String> {
    let text = |e: mamba_kernels::KernelError| e.to_string();
    let up = |e: mamba_cuda::CudaError| e.to_string();
    let (gpu, stream, marker) = (kernels.gpu(), kernels.gpu().compute(), PhantomData);
    let mut source = draws::<f32>("source", len);
    let special = [f32::INFINITY, -0.0, 1e-7, 70_000.0, f32::NEG_INFINITY, 65_519.9, 3e38, 1e-42];
    source.iter_mut().skip(1).zip(special).for_each(|(x, s)| *x = s);
    let input = DeviceBuf::from_host(gpu, &source).map_err(up)?;
    let mut half = poisoned::<T>(gpu, len).map_err(text)?;
    let mut back = poisoned::<f32>(gpu, len).map_err(text)?;
    let n = Val(len as i64);
    Cast { input: input.view(), out: half.view_mut(), len: n, marker }.launch(kernels).map_err(text)?;
    Cast { input: half.view(), out: back.view_mut(), len: n, marker: PhantomData }
        .launch(kernels)
        .map_err(text)?;
    let want: Vec<T> = source.iter().map(|&x| T::from_f32(x)).collect();
    let wide_again: Vec<f32> = want.iter().map(|x| x.to_f32()).collect();
    if bits(&half.to_host(stream).map_err(up)?) != bits(&want) {
        return Err("f32 to half is not round-to-nearest-even".to_owned());
    }
    if bits(&back.to_host(stream).map_err(up)?) != bits(&wide_again) {
        return Err("half to f32 is not exact".to_owned());
    }
    pointwise::<T>(kernels, len, 0)
}

/// `shift`: elements by which the buffers miss alignment.
fn pointwise<T: Elem>(kernels: &Kernels, len: usize, shift: usize) -> Result<(), String> {
    let text = |e: mamba_kernels::KernelError| e.to_string();
    let up = |e: mamba_cuda::CudaError| e.to_string();
    let (gpu, stream, marker) = (kernels.gpu(), kernels.gpu().compute(), PhantomData);
    let (a, mut b) = (draws::<T>("a", len + shift), draws::<T>("b", len + shift));
    b[shift + len / 2] = T::from_f32(f32::NAN);
    let (da, mut db) =
        (DeviceBuf::from_host(gpu, &a).map_err(up)?, DeviceBuf::from_host(gpu, &b).map_err(up)?);
    let (at, n) = (shift..shift + len, Val(len as i64));
    let input = da.view().slice(at.clone()).map_err(up)?;
    let out = db.view_mut().slice(at.clone()).map_err(up)?;
    Add { input, out, len: n, marker }.launch(kernels).map_err(text)?;
    let sum: Vec<f64> =
        db.to_host(stream).map_err(up)?[at.clone()].iter().map(|x| x.to_f32().into()).collect();
    for (i, got) in sum.iter().enumerate() {
        let want = T::from_f32(a[shift + i].to_f32() + b[shift + i].to_f32()).to_f32();
        if !(*got == f64::from(want) || got.is_nan() && want.is_nan()) {
            return Err(format!("sum {i}: {got}, not {want}"));
        }
    }
    let factor = DeviceBuf::from_host(gpu, &[3.0f32]).map_err(up)?;
    for divide in [0, 1] {
        let mut scaled = poisoned::<f32>(gpu, len + shift).map_err(text)?;
        let out = scaled.view_mut().slice(at.clone()).map_err(up)?;
        Scale { input, factor: factor.view(), out, divide: Val(divide), len: n, marker }
            .launch(kernels)
            .map_err(text)?;
        let want: Vec<f32> = a[at.clone()]
            .iter()
            .map(|x| if divide == 1 { x.to_f32() / 3.0 } else { x.to_f32() * 3.0 })
            .collect();
        if bits(&scaled.to_host(stream).map_err(up)?[at.clone()]) != bits(&want) {
            return Err(format!("divide {divide}: not exact"));
        }
    }
    let out = db.view_mut().slice(at.clone()).map_err(up)?;
    Fill { out, value: Val(1.0 / 3.0), len: n, marker }.launch(kernels).map_err(text)?;
    let filled = db.to_host(stream).map_err(up)?;
    let third = vec![T::from_f32(1.0 / 3.0); len];
    match bits(&filled[at]) == bits(&third) && bits(&filled[..shift]) == bits(&b[..shift]) {
        true => Ok(()),
        false => Err("fill missed elements, or hit others".to_owned()),
    }
}

fn columns<T: Elem>(kernels: &Kernels, (rows, cols): (usize, usize)) -> Result<(), String> {
    let text = |e: mamba_kernels::KernelError| e.to_string();
    let up = |e: mamba_cuda::CudaError| e.to_string();
    let (gpu, stream, marker) = (kernels.gpu(), kernels.gpu().compute(), PhantomData);
    let ld = cols + 3;
    let (x, bias) = (draws::<T>("x", rows * ld), draws::<f32>("bias", cols));
    let old = draws::<f32>("old", cols);
    let mut dx = DeviceBuf::from_host(gpu, &x).map_err(up)?;
    let parts = ColumnSums::<T>::parts(rows);
    let mut partial = poisoned::<f32>(gpu, parts * cols).map_err(text)?;
    let mut out = DeviceBuf::from_host(gpu, &old).map_err(up)?;
    let (r, c, stride) = (Val(rows as i64), Val(cols as i32), Val(ld as i64));
    ColumnSums {
        x: dx.view(),
        partial: partial.view_mut(),
        rows: r,
        cols: c,
        ld: stride,
        rows_per_part: Val(ColumnSums::<T>::rows_per_part(rows) as i64),
        marker,
    }
    .launch(kernels)
    .map_err(text)?;
    FoldParts::new(partial.view(), out.view_mut(), &[Fold::dense(parts, cols)])
        .map_err(text)?
        .launch(kernels)
        .map_err(text)?;
    let mut want = wide(&old);
    for row in x.chunks(ld) {
        want.iter_mut().zip(row).for_each(|(w, v)| *w += f64::from(v.to_f32()));
    }
    close("column sums", &wide(&out.to_host(stream).map_err(up)?), &want, 2e-6)?;
    let b = DeviceBuf::from_host(gpu, &bias).map_err(up)?;
    AddBias { x: dx.view_mut(), bias: b.view(), rows: r, cols: c, ld: stride, marker }
        .launch(kernels)
        .map_err(text)?;
    let want: Vec<T> = x
        .chunks(ld)
        .flat_map(|row| row.iter().enumerate().map(|(c, v)| (bias.get(c).copied().unwrap_or(0.0), *v)))
        .map(|(b, v)| T::from_f32(v.to_f32() + b))
        .collect();
    match bits(&dx.to_host(stream).map_err(up)?) == bits(&want) {
        true => Ok(()),
        false => Err("bias: not exact".to_owned()),
    }
}
