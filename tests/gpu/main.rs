//! What only a GPU can show. Without a driver every trial reports itself as ignored; with `MAMBA_GPU=required` that is
//! a failure.

mod device;
mod kernels;
mod support;
mod trainer;

use libtest_mimic::{Arguments, Trial};
use mamba_cuda::Gpu;
use mamba_kernels::Kernels;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The trials share one stream.
    arguments.test_threads = Some(1);
    let gpu = Gpu::open(0);
    let required = std::env::var("MAMBA_GPU").is_ok_and(|v| v == "required");
    if let Err(error) = &gpu {
        eprintln!("no GPU: {error}");
        if required {
            eprintln!("MAMBA_GPU=required: skipped trials are failures");
            return ExitCode::FAILURE;
        }
    }
    let kernels = gpu.ok().as_ref().map(Kernels::new);
    let mut trials: Vec<Trial> = Vec::new();
    for (name, test) in device::trials().into_iter().chain(kernels::trials()).chain(trainer::trials()) {
        let kernels = kernels.clone();
        let ignored = kernels.is_none();
        let run = move || match &kernels {
            Some(kernels) => test(kernels).map_err(Into::into),
            None => Err("no GPU".into()),
        };
        trials.push(Trial::test(name, run).with_ignored_flag(ignored));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
