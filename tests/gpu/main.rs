//! What only a GPU can show. Without a driver every trial reports itself as ignored; with `MAMBA_GPU=required` that is
//! a failure.

mod device;
mod kernels;
mod support;
mod trainer;

use libtest_mimic::{Arguments, Trial};
use mamba_cuda::Gpu;
use mamba_kernels::Kernels;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

/// Passed and failed tests of a family, the first part of their names.
type Tally = Arc<Mutex<BTreeMap<String, [usize; 2]>>>;

/// Counts a test as failed until `passed` was called: one that panics does not get there.
struct Count<'a> {
    tally: &'a Tally,
    family: &'a str,
    passed: bool,
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        let mut all = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(self.family.to_owned()).or_default()[usize::from(!self.passed)] += 1;
    }
}

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
    let tally = Tally::default();
    for (name, test) in device::trials().into_iter().chain(kernels::trials()).chain(trainer::trials()) {
        let kernels = kernels.clone();
        let ignored = kernels.is_none();
        let (tally, family) = (tally.clone(), name.split('/').next().unwrap_or_default().to_owned());
        let run = move || {
            let kernels = kernels.as_ref().ok_or("no GPU")?;
            let mut count = Count { tally: &tally, family: &family, passed: false };
            test(kernels)?;
            count.passed = true;
            Ok(())
        };
        trials.push(Trial::test(name, run).with_ignored_flag(ignored));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    for (family, [passed, failed]) in &*tally.lock().unwrap_or_else(PoisonError::into_inner) {
        println!("{family:<12} {passed:>5} passed {failed:>5} failed");
    }
    conclusion.exit_code()
}
