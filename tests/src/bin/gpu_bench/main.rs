//! Times the kernels at the shapes of a 130 M language model: `gpu_bench [filter]…`; whole steps: `gpu_bench step[/filter]…`;
//! tokens of a decoder: `gpu_bench decode[/filter]…`. `--csv FILE` writes every figure to a file as well.
//!
//! Each line: median µs over CUDA events, rate, floor and share of it. The floor is bytes over the bandwidth that a copy
//! reaches in the same run, or operations over 790 TFLOP/s (bf16), 60 (f32), 3.7 T exponentials a second. Before each run
//! the L2 is flushed by reading 256 MiB: it holds nothing of the operands, and nothing that must be written back.

mod decode;
mod memory;
mod products;
mod report;
mod sequence;
mod steps;

use mamba_cuda::{DeviceBuf, Gpu, median_time};
use mamba_kernels::optim::{GradSums, TailInputs, TailState, blocks};
use mamba_kernels::{Elem, Kernels, Launch, Result, Val};
use mamba_model::rng::SplitMix64;
use report::Report;
use std::marker::PhantomData;
use std::process::ExitCode;

/// Tokens of a window: 8 sequences of 2,048.
const TOKENS: usize = 16_384;
/// Width of the model.
const D_MODEL: usize = 768;
/// Channels of a layer.
const D_INNER: usize = 1536;
/// Rows of the head.
const VOCAB: usize = 50_304;
/// Elements that are read to flush the L2.
const FLUSH: usize = 64 << 20;

/// What bounds a kernel.
#[derive(Clone, Copy)]
enum Work {
    Bytes(usize),
    /// bf16 products on the tensor cores.
    Flops(usize),
    /// f32 products.
    FlopsF32(usize),
    Exponentials(usize),
}

/// The device, and what every measurement needs.
struct Bench {
    kernels: Kernels,
    filters: Vec<String>,
    /// Bytes a microsecond, measured.
    bandwidth: f64,
    flush: Flush,
    report: Report,
}

struct Flush {
    values: DeviceBuf<f32>,
    inputs: DeviceBuf<TailInputs>,
    state: DeviceBuf<TailState>,
    partial: DeviceBuf<f64>,
    bad: DeviceBuf<u32>,
}

impl Flush {
    fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self {
            values: DeviceBuf::zeros(gpu, FLUSH)?,
            inputs: DeviceBuf::zeros(gpu, 1)?,
            state: DeviceBuf::from_host(gpu, &[TailState::new(1.0)])?,
            partial: DeviceBuf::zeros(gpu, blocks(FLUSH))?,
            bad: DeviceBuf::zeros(gpu, blocks(FLUSH))?,
        })
    }

    fn run(&mut self, kernels: &Kernels) -> Result<()> {
        let call = GradSums {
            grads: self.values.view(),
            inputs: self.inputs.view(),
            state: self.state.view(),
            partial: self.partial.view_mut(),
            bad: self.bad.view_mut(),
            len: Val(FLUSH as i64),
            marker: PhantomData,
        };
        call.launch(kernels)
    }
}

impl Bench {
    fn new(gpu: &Gpu, filters: Vec<String>) -> Result<Self> {
        let mut flush = Flush::new(gpu)?;
        let kernels = Kernels::new(gpu);
        let (source, n) = (DeviceBuf::<u8>::zeros(gpu, 1 << 30)?, 1 << 30);
        let mut target = DeviceBuf::<u8>::zeros(gpu, n)?;
        let stream = gpu.compute();
        let copy = || Ok(target.view_mut().copy_from(source.view(), stream)?);
        let time = median_time(stream, 3, 11, || flush.run(&kernels), copy)?;
        let bandwidth = 2.0 * n as f64 / time;
        println!("{}: copy {:.0} GB/s", gpu.info().name, bandwidth / 1e3);
        println!("{:<44} {:>10} {:>16} {:>9} {:>7}", "kernel", "µs", "rate", "floor", "share");
        Ok(Self { kernels, filters, bandwidth, flush, report: Report::default() })
    }

    fn gpu(&self) -> &Gpu {
        self.kernels.gpu()
    }

    /// Whether a family is asked for.
    fn wants(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|f| name.contains(f.as_str()))
    }

    /// Measures and prints one line.
    fn line(&mut self, name: &str, work: Work, mut call: impl FnMut(&Kernels) -> Result<()>) -> Result<()> {
        if !self.wants(name) {
            return Ok(());
        }
        let (kernels, flush) = (&self.kernels, &mut self.flush);
        let time = median_time(kernels.gpu().compute(), 3, 15, || flush.run(kernels), || call(kernels))?;
        let (amount, peak, unit) = match work {
            Work::Bytes(n) => (n, self.bandwidth, "GB/s"),
            Work::Flops(n) => (n, 790e6, "TFLOP/s"),
            Work::FlopsF32(n) => (n, 60e6, "TFLOP/s"),
            Work::Exponentials(n) => (n, 3.7e6, "Texp/s"),
        };
        let (floor, rate) = (amount as f64 / peak, amount as f64 / time);
        let rate = if unit == "GB/s" { rate / 1e3 } else { rate / 1e6 };
        let share = 100.0 * floor / time;
        println!("{name:<44} {time:>10.1} {rate:>8.1} {unit:<7} {floor:>9.1} {share:>5.0} %");
        self.report.add(name, time, Some(floor));
        Ok(())
    }
}

/// Device memory with random values; a pattern of a million repeats.
fn random<T: Elem>(gpu: &Gpu, n: usize, size: f32) -> Result<DeviceBuf<T>> {
    let mut rng = SplitMix64::new(7, "bench");
    let pattern: Vec<T> =
        (0..n.min((1 << 20) + 7)).map(|_| T::from_f32(rng.normal() as f32 * size)).collect();
    let values: Vec<T> = pattern.iter().copied().cycle().take(n).collect();
    Ok(DeviceBuf::from_host(gpu, &values)?)
}

fn run(gpu: &Gpu) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut filters: Vec<String> = std::env::args().skip(1).collect();
    let csv = match filters.iter().position(|f| f == "--csv") {
        Some(at) if at + 1 < filters.len() => filters.drain(at..at + 2).nth(1),
        Some(_) => return Err("--csv needs a file name".into()),
        None => None,
    };
    let begins = |start: &str| filters.iter().any(|f| f.starts_with(start));
    let report = if begins("decode") {
        decode::run(gpu, &filters)?
    } else if begins("step") {
        steps::run(gpu, &filters)?
    } else {
        kernels(gpu, filters)?
    };
    report.summary();
    Ok(csv.map_or(Ok(()), |path| report.write(path.as_ref()))?)
}

fn kernels(gpu: &Gpu, filters: Vec<String>) -> Result<Report> {
    let mut bench = Bench::new(gpu, filters)?;
    memory::norm(&mut bench)?;
    products::projections(&mut bench)?;
    sequence::convolution(&mut bench)?;
    sequence::scan(&mut bench)?;
    memory::loss(&mut bench)?;
    memory::embedding(&mut bench)?;
    memory::elementwise(&mut bench)?;
    memory::optimizer(&mut bench)?;
    Ok(bench.report)
}

fn main() -> ExitCode {
    let result = Gpu::open(0).map_err(Into::into).and_then(|gpu| run(&gpu));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu_bench: {error}");
            ExitCode::FAILURE
        }
    }
}
