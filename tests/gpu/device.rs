//! Buffers, staging, graphs.

use crate::support::Test;
use mamba_cuda::{Capture, CudaError, DeviceBuf, Staging};
use mamba_kernels::Kernels;

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn ensure(ok: bool, what: &str) -> Result<(), String> {
    if ok { Ok(()) } else { Err(what.to_owned()) }
}

/// (name, test) of this file.
pub fn trials() -> Vec<(String, Test)> {
    type Check = fn(&Kernels) -> Result<(), String>;
    let all: [(&str, Check); 4] = [
        ("device/copies", copies),
        ("device/staging_lets_go_of_the_callers_buffer", staging),
        ("device/capture_executes_nothing_and_refuses_allocation", capture),
        ("device/memory_comes_back", memory),
    ];
    all.into_iter().map(|(name, test)| (name.to_owned(), Box::new(test) as Test)).collect()
}

fn copies(kernels: &Kernels) -> Result<(), String> {
    let gpu = kernels.gpu();
    let data: Vec<f32> = (0..100_003).map(|i| i as f32).collect();
    let buf = DeviceBuf::from_host(gpu, &data).map_err(text)?;
    ensure(buf.to_host(gpu.compute()).map_err(text)? == data, "what was written comes back")?;
    let reversed = std::ops::Range { start: 5, end: 4 };
    ensure(buf.view().slice(reversed).is_err() && buf.view().slice(0..100_004).is_err(), "ranges are checked")
}

fn staging(kernels: &Kernels) -> Result<(), String> {
    let gpu = kernels.gpu();
    let n = 1 << 19;
    let mut staging = Staging::<f32>::new(gpu, n).map_err(text)?;
    let mut sums = DeviceBuf::<f32>::zeros(gpu, 500 * 4).map_err(text)?;
    let mut host = vec![0.0f32; n];
    for step in 0..500 {
        host.fill(step as f32);
        staging.stage(&host).map_err(text)?;
        // The caller overwrites its buffer at once.
        host.fill(-1.0);
        staging.commit().map_err(text)?;
        let part = staging.view().slice(n - 4..n).map_err(text)?;
        let mut out = sums.view_mut().slice(step * 4..step * 4 + 4).map_err(text)?;
        out.copy_from(part, gpu.compute()).map_err(text)?;
    }
    let seen = sums.to_host(gpu.compute()).map_err(text)?;
    ensure(seen.chunks(4).enumerate().all(|(i, c)| c == [i as f32; 4]), "every step saw its own data")
}

fn capture(kernels: &Kernels) -> Result<(), String> {
    let gpu = kernels.gpu();
    let source = DeviceBuf::from_host(gpu, &[3.0f32; 64]).map_err(text)?;
    let mut target = DeviceBuf::<f32>::zeros(gpu, 64).map_err(text)?;
    let recording = Capture::begin(gpu.compute()).map_err(text)?;
    target.view_mut().copy_from(source.view(), gpu.compute()).map_err(text)?;
    let refused = DeviceBuf::<f32>::uninit(gpu, 1);
    ensure(matches!(refused, Err(CudaError::AllocationInCapture { .. })), "allocation in a capture")?;
    let graph = recording.end().map_err(text)?;
    ensure(target.to_host(gpu.compute()).map_err(text)? == [0.0; 64], "a capture runs nothing")?;
    graph.launch().map_err(text)?;
    ensure(target.to_host(gpu.compute()).map_err(text)? == [3.0; 64], "a replay runs it")?;
    for _ in 0..200 {
        let again = Capture::begin(gpu.compute()).map_err(text)?;
        target.view_mut().copy_from(source.view(), gpu.compute()).map_err(text)?;
        drop(again.end().map_err(text)?);
    }
    Ok(())
}

fn memory(kernels: &Kernels) -> Result<(), String> {
    let gpu = kernels.gpu();
    let (before, total) = gpu.memory().map_err(text)?;
    for _ in 0..100 {
        drop(DeviceBuf::<u8>::uninit(gpu, 64 << 20).map_err(text)?);
    }
    let (after, _) = gpu.memory().map_err(text)?;
    ensure(before.abs_diff(after) < 64 << 20, "free memory is flat")?;
    let too_much = DeviceBuf::<u8>::uninit(gpu, total * 2);
    ensure(matches!(too_much, Err(CudaError::OutOfMemory { .. })), "too much memory is refused by name")
}
