use crate::support::{Test, close, draws, poisoned, rounding, wide};
use half::{bf16, f16};
use mamba_cuda::{CudaError, DeviceBuf};
use mamba_kernels::fold::{Fold, FoldParts};
use mamba_kernels::norm::{RmsNormBackward, RmsNormForward, parts};
use mamba_kernels::{Elem, KernelError, Kernels, Launch, Val};
use mamba_model::oracle::ops::{rmsnorm, rmsnorm_backward};
use std::marker::PhantomData;

const EPS: f32 = 1e-5;

/// (rows, dim): every plan with a full and a short row, odd widths, fewer and more rows than parts.
const SIZES: [(usize, usize); 14] = [
    (1, 1),
    (5, 3),
    (9, 64),
    (33, 256),
    (7, 260),
    (6, 384),
    (3000, 768),
    (5, 769),
    (2, 1024),
    (601, 1536),
    (3, 2048),
    (4, 4095),
    (5, 5120),
    (3, 8192),
];

/// (name, test) of the norm.
pub fn trials() -> Vec<(String, Test)> {
    let mut all: Vec<(String, Test)> = Vec::new();
    for size in SIZES {
        let name = |kind: &str| format!("norm/{kind}/{size:?}");
        all.push((name("f32"), Box::new(move |k| run::<f32, f32>(k, size))));
        all.push((name("bf16"), Box::new(move |k| run::<bf16, bf16>(k, size))));
        all.push((name("f16"), Box::new(move |k| run::<f16, f16>(k, size))));
        all.push((name("bf16_f32"), Box::new(move |k| run::<bf16, f32>(k, size))));
        all.push((name("f16_f32"), Box::new(move |k| run::<f16, f32>(k, size))));
    }
    all.push(("norm/nan_stays_in_its_row".to_owned(), Box::new(nan_stays_in_its_row)));
    all.push(("norm/misaligned_views".to_owned(), Box::new(misaligned)));
    all
}

fn text(e: KernelError) -> String {
    e.to_string()
}

fn up(e: CudaError) -> String {
    e.to_string()
}

/// With and without the addition in front, overwriting and accumulating.
fn run<T: Elem, O: Elem>(kernels: &Kernels, (rows, dim): (usize, usize)) -> Result<(), String> {
    for fused in [false, true] {
        let case = Case::<T, O>::new(rows, dim, fused);
        if case.check(kernels)? != case.check(kernels)? {
            return Err("two runs differ".to_owned());
        }
    }
    Ok(())
}

/// Inputs of one norm.
struct Case<T, O> {
    rows: usize,
    dim: usize,
    fused: bool,
    x: Vec<f32>,
    add: Vec<T>,
    weight: Vec<f32>,
    d_out: Vec<O>,
    /// What the gradients held before.
    old: Vec<f32>,
}

impl<T: Elem, O: Elem> Case<T, O> {
    fn new(rows: usize, dim: usize, fused: bool) -> Self {
        let cells = rows * dim;
        let (x, add, weight) = (draws("x", cells), draws("add", cells), draws("weight", dim));
        Self { rows, dim, fused, x, add, weight, d_out: draws("d_out", cells), old: draws("old", cells) }
    }

    /// What is normalized.
    fn summed(&self) -> Vec<f32> {
        let add = |(x, a): (&f32, &T)| if self.fused { x + a.to_f32() } else { *x };
        self.x.iter().zip(&self.add).map(add).collect()
    }

    /// Forward and backward against the oracle; the bits of all outputs.
    fn check(&self, kernels: &Kernels) -> Result<Vec<u32>, String> {
        let summed = self.summed();
        let (want, rms) = rmsnorm(&wide(&summed), &wide(&self.weight), f64::from(EPS));
        let (out, rstd) = self.forward(kernels, &summed)?;
        close("out", &wide(&out), &want, rounding::<O>())?;
        let want: Vec<f64> = rms.iter().map(|r| 1.0 / r).collect();
        close("rstd", &wide(&rstd), &want, 1e-6)?;
        let mut bits: Vec<u32> = out.iter().map(|v| v.to_f32().to_bits()).collect();
        for accumulate in [false, true] {
            let (d_residual, d_weight) = self.backward(kernels, &summed, &rstd, accumulate)?;
            self.check_gradients(&summed, &rms, accumulate, &d_residual, &d_weight)?;
            bits.extend(d_residual.iter().chain(&d_weight).map(|v| v.to_bits()));
        }
        Ok(bits)
    }

    fn forward(&self, kernels: &Kernels, summed: &[f32]) -> Result<(Vec<O>, Vec<f32>), String> {
        let (gpu, stream) = (kernels.gpu(), kernels.gpu().compute());
        let cells = self.rows * self.dim;
        let residual = DeviceBuf::from_host(gpu, &self.x).map_err(up)?;
        let add = DeviceBuf::from_host(gpu, &self.add).map_err(up)?;
        let weight = DeviceBuf::from_host(gpu, &self.weight).map_err(up)?;
        let mut sum = poisoned::<f32>(gpu, cells).map_err(text)?;
        let mut out = poisoned::<O>(gpu, cells).map_err(text)?;
        let mut rstd = poisoned::<f32>(gpu, self.rows).map_err(text)?;
        let call = RmsNormForward {
            residual: residual.view(),
            add: self.fused.then(|| add.view()),
            weight: weight.view(),
            sum: self.fused.then(|| sum.view_mut()),
            out: out.view_mut(),
            rstd: rstd.view_mut(),
            eps: Val(EPS),
            rows: Val(self.rows as i64),
            dim: Val(self.dim as i32),
            marker: PhantomData,
        };
        call.launch(kernels).map_err(text)?;
        if self.fused && sum.to_host(stream).map_err(up)? != summed {
            return Err("the sum is not exact".to_owned());
        }
        Ok((out.to_host(stream).map_err(up)?, rstd.to_host(stream).map_err(up)?))
    }

    fn backward(
        &self,
        kernels: &Kernels,
        summed: &[f32],
        rstd: &[f32],
        accumulate: bool,
    ) -> Result<(Vec<f32>, Vec<f32>), String> {
        let (gpu, stream) = (kernels.gpu(), kernels.gpu().compute());
        let (rows, dim, count) = (self.rows, self.dim, parts(self.rows, self.dim));
        let f32s = |x: &[f32]| DeviceBuf::from_host(gpu, x).map_err(up);
        let (residual, rstd, weight) = (f32s(summed)?, f32s(rstd)?, f32s(&self.weight)?);
        let d_out = DeviceBuf::from_host(gpu, &self.d_out).map_err(up)?;
        let mut d_residual = match accumulate {
            true => f32s(&self.old)?,
            false => poisoned(gpu, rows * dim).map_err(text)?,
        };
        let mut d_add = poisoned::<T>(gpu, rows * dim).map_err(text)?;
        let mut partial = poisoned::<f32>(gpu, count * dim).map_err(text)?;
        let mut d_weight = f32s(&self.old[..dim])?;
        let call = RmsNormBackward {
            residual: residual.view(),
            rstd: rstd.view(),
            weight: weight.view(),
            d_out: d_out.view(),
            d_residual: d_residual.view_mut(),
            d_add: self.fused.then(|| d_add.view_mut()),
            partial: partial.view_mut(),
            accumulate: Val(i32::from(accumulate)),
            rows: Val(rows as i64),
            dim: Val(dim as i32),
            marker: PhantomData,
        };
        call.launch(kernels).map_err(text)?;
        let fold =
            FoldParts::new(partial.view(), d_weight.view_mut(), &[Fold::dense(count, dim)]).map_err(text)?;
        fold.launch(kernels).map_err(text)?;
        let got = d_residual.to_host(stream).map_err(up)?;
        let copy = d_add.to_host(stream).map_err(up)?;
        let rounded = |(c, v): (&T, &f32)| c.to_f32().to_bits() == T::from_f32(*v).to_f32().to_bits();
        match !self.fused || copy.iter().zip(&got).all(rounded) {
            true => Ok((got, d_weight.to_host(stream).map_err(up)?)),
            false => Err("d_add is not the rounded d_residual".to_owned()),
        }
    }

    fn check_gradients(
        &self,
        summed: &[f32],
        rms: &[f64],
        accumulate: bool,
        d_residual: &[f32],
        d_weight: &[f32],
    ) -> Result<(), String> {
        let (weight, d_out) = (wide(&self.weight), wide(&self.d_out));
        let (mut d_x, mut d_w) = rmsnorm_backward(&wide(summed), &weight, rms, &d_out);
        // The two terms of d_x may cancel (of one column nothing but eps remains), so the error is measured on the first.
        let mut size = 0.0;
        for (i, want) in d_x.iter_mut().enumerate() {
            size += (d_out[i] * weight[i % self.dim] / rms[i / self.dim]).powi(2);
            if accumulate {
                *want += f64::from(self.old[i]);
            }
        }
        d_w.iter_mut().zip(&self.old).for_each(|(want, old)| *want += f64::from(*old));
        let off: f64 = d_residual.iter().zip(&d_x).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum();
        let error = (off / size).sqrt();
        if error.is_nan() || error > 1e-6 {
            return Err(format!("d_residual: error {error:.1e} of its first term"));
        }
        close("d_weight", &wide(d_weight), &d_w, 2e-6)
    }
}

/// A NaN and an Inf spoil their own rows, and the whole gradient of the weight, but no other row.
fn nan_stays_in_its_row(kernels: &Kernels) -> Result<(), String> {
    let mut case = Case::<f32, f32>::new(9, 260, false);
    case.x[2 * 260 + 7] = f32::NAN;
    case.x[5 * 260] = f32::INFINITY;
    let (out, rstd) = case.forward(kernels, &case.x)?;
    let (d_residual, d_weight) = case.backward(kernels, &case.x, &rstd, true)?;
    for row in 0..9 {
        let cells = row * 260..(row + 1) * 260;
        let (y, d) = (&out[cells.clone()], &d_residual[cells]);
        let right = match row {
            2 => y.iter().chain(d).all(|v| v.is_nan()),
            // Inf · 1/Inf is NaN; its neighbours are x · 0.
            5 => y[0].is_nan() && d[0].is_nan(),
            _ => y.iter().chain(d).all(|v| v.is_finite()),
        };
        if !right {
            return Err(format!("row {row}"));
        }
    }
    match d_weight.iter().all(|v| v.is_nan()) {
        true => Ok(()),
        false => Err("d_weight".to_owned()),
    }
}

/// Forward: a view that is not aligned gives the bits of one that is, as far as the sums agree. Backward: it is refused,
/// for its cut would be another one.
fn misaligned(kernels: &Kernels) -> Result<(), String> {
    let gpu = kernels.gpu();
    let (rows, dim) = (3usize, 64usize);
    let host = draws::<f32>("x", rows * dim + 1);
    let (buf, ones) = (
        DeviceBuf::from_host(gpu, &host).map_err(up)?,
        DeviceBuf::from_host(gpu, &vec![1.0f32; dim]).map_err(up)?,
    );
    let mut out = poisoned::<f32>(gpu, rows * dim).map_err(text)?;
    let mut rstd = poisoned::<f32>(gpu, rows).map_err(text)?;
    let residual = buf.view().slice(1..rows * dim + 1).map_err(up)?;
    let (rows_arg, dim_arg, marker) = (Val(rows as i64), Val(dim as i32), PhantomData);
    let forward = RmsNormForward::<f32, f32> {
        residual,
        add: None,
        weight: ones.view(),
        sum: None,
        out: out.view_mut(),
        rstd: rstd.view_mut(),
        eps: Val(EPS),
        rows: rows_arg,
        dim: dim_arg,
        marker,
    };
    forward.launch(kernels).map_err(text)?;
    let (want, _) = rmsnorm(&wide(&host[1..]), &vec![1.0; dim], f64::from(EPS));
    close("out", &wide(&out.to_host(gpu.compute()).map_err(up)?), &want, rounding::<f32>())?;
    let mut d_residual = poisoned::<f32>(gpu, rows * dim).map_err(text)?;
    let mut partial = poisoned::<f32>(gpu, parts(rows, dim) * dim).map_err(text)?;
    let backward = RmsNormBackward::<f32, f32> {
        residual,
        rstd: rstd.view(),
        weight: ones.view(),
        d_out: out.view(),
        d_residual: d_residual.view_mut(),
        d_add: None,
        partial: partial.view_mut(),
        accumulate: Val(0),
        rows: rows_arg,
        dim: dim_arg,
        marker,
    };
    match backward.launch(kernels) {
        Err(KernelError::Size { argument: "address", .. }) => Ok(()),
        other => Err(format!("a misaligned backward gave {other:?}")),
    }
}
