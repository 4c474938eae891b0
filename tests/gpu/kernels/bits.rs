//! Sums whose bits must not depend on what else is computed, or where.

use crate::support::{Test, bits, draws, poisoned};
use mamba_cuda::DeviceBuf;
use mamba_kernels::norm::RmsNormForward;
use mamba_kernels::optim::{GradSums, TailInputs, TailState, blocks};
use mamba_kernels::{Kernels, Launch, Val};
use mamba_optim::grads::{BLOCK, sum_of_squares};
use std::marker::PhantomData;

/// (name, test) of the sums.
pub fn trials() -> Vec<(String, Test)> {
    let mut all: Vec<(String, Test)> = Vec::new();
    for dim in [64, 130, 768, 1024, 2047, 4096] {
        all.push((format!("bits/norm_of_a_row_alone/{dim}"), Box::new(move |k| rows_alone(k, dim))));
    }
    for len in [1, 31, 4096, BLOCK, BLOCK + 1, 100_003, 3_000_000] {
        all.push((format!("bits/sums_of_squares_as_on_the_host/{len}"), Box::new(move |k| sums(k, len))));
    }
    all
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn normalized(kernels: &Kernels, rows: &[f32], weight: &[f32]) -> Result<Vec<f32>, String> {
    let (gpu, dim) = (kernels.gpu(), weight.len());
    let count = rows.len() / dim;
    let residual = DeviceBuf::from_host(gpu, rows).map_err(text)?;
    let weight = DeviceBuf::from_host(gpu, weight).map_err(text)?;
    let mut out = poisoned::<f32>(gpu, rows.len()).map_err(text)?;
    let mut rstd = poisoned::<f32>(gpu, count).map_err(text)?;
    RmsNormForward::<f32, f32> {
        residual: residual.view(),
        add: None,
        weight: weight.view(),
        sum: None,
        out: out.view_mut(),
        rstd: rstd.view_mut(),
        eps: Val(1e-5),
        rows: Val(count as i64),
        dim: Val(dim as i32),
        marker: PhantomData,
    }
    .launch(kernels)
    .map_err(text)?;
    out.to_host(gpu.compute()).map_err(text)
}

fn rows_alone(kernels: &Kernels, dim: usize) -> Result<(), String> {
    let (rows, weight) = (draws::<f32>("rows", 37 * dim), draws::<f32>("weight", dim));
    let all = normalized(kernels, &rows, &weight)?;
    for row in [0, 17, 36] {
        let at = row * dim..(row + 1) * dim;
        if bits(&normalized(kernels, &rows[at.clone()], &weight)?) != bits(&all[at]) {
            return Err(format!("row {row} differs alone"));
        }
    }
    Ok(())
}

fn sums(kernels: &Kernels, len: usize) -> Result<(), String> {
    let (gpu, grads) = (kernels.gpu(), draws::<f32>("grads", len));
    let values = TailInputs { grad_factor: 0.375, ..bytemuck::Zeroable::zeroed() };
    let inputs = DeviceBuf::from_host(gpu, &[values]).map_err(text)?;
    let state = DeviceBuf::from_host(gpu, &[TailState::new(4.0)]).map_err(text)?;
    let source = DeviceBuf::from_host(gpu, &grads).map_err(text)?;
    let mut partial = DeviceBuf::<f64>::uninit(gpu, blocks(len)).map_err(text)?;
    partial.view_mut().fill_bytes(0xff, gpu.compute()).map_err(text)?;
    let mut bad = DeviceBuf::<u32>::uninit(gpu, blocks(len)).map_err(text)?;
    GradSums {
        grads: source.view(),
        inputs: inputs.view(),
        state: state.view(),
        partial: partial.view_mut(),
        bad: bad.view_mut(),
        len: Val(len as i64),
        marker: PhantomData,
    }
    .launch(kernels)
    .map_err(text)?;
    let got = partial.to_host(gpu.compute()).map_err(text)?;
    let want: Vec<f64> = grads.chunks(BLOCK).map(|block| sum_of_squares(block, 0.375 / 4.0)).collect();
    match bits(&got) == bits(&want) {
        true => Ok(()),
        false => Err(format!("{got:?}, not {want:?}")),
    }
}
