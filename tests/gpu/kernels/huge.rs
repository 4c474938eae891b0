//! Past 2^31 elements and past 65,535 blocks. Needs 48 GB of device memory.

use crate::support::{Test, close};
use half::bf16;
use mamba_cuda::{DeviceBuf, View};
use mamba_kernels::elementwise::{Cast, Fill};
use mamba_kernels::norm::RmsNormForward;
use mamba_kernels::optim::{AdamW, GROUP, GradSums, TailInputs, TailState, blocks};
use mamba_kernels::{Elem, Kernels, Launch, Val};
use std::marker::PhantomData;

/// Not a multiple of four.
const LEN: usize = (1 << 31) + 4_099;

/// (name, test) of the largest sizes.
pub fn trials() -> Vec<(String, Test)> {
    let cast: Test = Box::new(cast);
    let all = [("huge/cast", cast), ("huge/norm", Box::new(norm)), ("huge/optim", Box::new(optim))];
    all.into_iter().map(|(name, test)| (name.to_owned(), test)).collect()
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn filled<T: Elem>(kernels: &Kernels, len: usize, value: f32) -> Result<DeviceBuf<T>, String> {
    let mut buf = DeviceBuf::uninit(kernels.gpu(), len).map_err(text)?;
    let call = Fill { out: buf.view_mut(), value: Val(value), len: Val(len as i64), marker: PhantomData };
    call.launch(kernels).map_err(text)?;
    Ok(buf)
}

/// The elements around the ends and around 2^31, all of which must be `want`.
fn all_are<T: Elem>(kernels: &Kernels, view: View<'_, T>, want: f32) -> Result<(), String> {
    let n = view.len();
    for start in [0, n / 2, (1 << 31) - 64, n - 128] {
        let part = view.slice(start..start + 128).map_err(text)?;
        let mut host = vec![T::from_f32(0.0); 128];
        part.read(&mut host, kernels.gpu().compute()).map_err(text)?;
        if let Some(i) = host.iter().position(|x| x.to_f32() != want) {
            return Err(format!("element {}: {}, not {want}", start + i, host[i].to_f32()));
        }
    }
    Ok(())
}

fn cast(kernels: &Kernels) -> Result<(), String> {
    let source = filled::<f32>(kernels, LEN, 1.5)?;
    let mut out = filled::<bf16>(kernels, LEN, 0.0)?;
    let call = Cast { input: source.view(), out: out.view_mut(), len: Val(LEN as i64), marker: PhantomData };
    call.launch(kernels).map_err(text)?;
    all_are(kernels, out.view(), 1.5)
}

fn norm(kernels: &Kernels) -> Result<(), String> {
    let (rows, dim) = (LEN.div_ceil(256), 256);
    let residual = filled::<f32>(kernels, rows * dim, 2.0)?;
    let weight = filled::<f32>(kernels, dim, 3.0)?;
    let mut out = filled::<bf16>(kernels, rows * dim, 0.0)?;
    let mut rstd = filled::<f32>(kernels, rows, 0.0)?;
    RmsNormForward::<bf16, bf16> {
        residual: residual.view(),
        add: None,
        weight: weight.view(),
        sum: None,
        out: out.view_mut(),
        rstd: rstd.view_mut(),
        eps: Val(0.0),
        rows: Val(rows as i64),
        dim: Val(dim as i32),
        marker: PhantomData,
    }
    .launch(kernels)
    .map_err(text)?;
    // 2 / sqrt(4) · 3.
    all_are(kernels, out.view(), 3.0)
}

fn optim(kernels: &Kernels) -> Result<(), String> {
    let (gpu, len) = (kernels.gpu(), Val(LEN as i64));
    let values = TailInputs { grad_factor: 1.0, lr: 1.0, decay: 1.0, one_minus_beta1: 1.0, ..zeroed() };
    let inputs = DeviceBuf::from_host(gpu, &[values]).map_err(text)?;
    let known =
        TailState { inv_scale: 1.0, clip: 1.0, bc1: 1.0, bc2: 1.0, applied: 1, ..TailState::new(1.0) };
    let state = DeviceBuf::from_host(gpu, &[known]).map_err(text)?;
    let grads = filled::<f32>(kernels, LEN, 0.5)?;
    let (mut partial, mut bad) = (
        DeviceBuf::<f64>::zeros(gpu, blocks(LEN)).map_err(text)?,
        DeviceBuf::<u32>::zeros(gpu, blocks(LEN)).map_err(text)?,
    );
    GradSums {
        grads: grads.view(),
        inputs: inputs.view(),
        state: state.view(),
        partial: partial.view_mut(),
        bad: bad.view_mut(),
        len,
        marker: PhantomData,
    }
    .launch(kernels)
    .map_err(text)?;
    let sum: f64 = partial.to_host(gpu.compute()).map_err(text)?.iter().sum();
    close("sum of squares", &[sum], &[LEN as f64 / 4.0], 1e-15)?;
    let (mut params, mut m, mut v) = (
        filled::<f32>(kernels, LEN, 4.0)?,
        filled::<f32>(kernels, LEN, 0.0)?,
        filled::<f32>(kernels, LEN, 0.0)?,
    );
    let groups = DeviceBuf::<u32>::zeros(gpu, LEN.div_ceil(GROUP)).map_err(text)?;
    let mut shadow = filled::<bf16>(kernels, LEN, 0.0)?;
    // β₁ = 0, β₂ = 0 and no second moment: p − lr · g / eps with eps 0.25 is 4 − 2.
    let values = TailInputs { eps: 0.25, ..values };
    let inputs = DeviceBuf::from_host(gpu, &[values]).map_err(text)?;
    AdamW {
        params: params.view_mut(),
        grads: grads.view(),
        m: m.view_mut(),
        v: v.view_mut(),
        shadow: Some(shadow.view_mut()),
        neg_a: None,
        groups: groups.view(),
        inputs: inputs.view(),
        state: state.view(),
        len,
        neg_a_len: 0,
        marker: PhantomData,
    }
    .launch(kernels)
    .map_err(text)?;
    all_are(kernels, params.view(), 2.0)?;
    all_are(kernels, m.view(), 0.5)?;
    all_are(kernels, shadow.view(), 2.0)
}

fn zeroed() -> TailInputs {
    bytemuck::Zeroable::zeroed()
}
