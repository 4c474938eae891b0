//! Whole trainers on the device, in every precision.

mod decode;
mod golden;
mod lifetime;
mod planted;
mod resident;
mod routes;
mod smoke;
mod sweep;

use crate::support::Test;
use mamba_tests::contract::{CASES, Target};
use mamba_tests::tolerance::Route;
use mamba_trainer::{Device, GemmMode, WeightDtype};

/// Every precision with the table's name for it.
pub const DTYPES: [(WeightDtype, Route); 4] = [
    (WeightDtype::F32, Route::GpuF32),
    (WeightDtype::Tf32, Route::GpuTf32),
    (WeightDtype::Bf16, Route::GpuBf16),
    (WeightDtype::F16, Route::GpuF16),
];

/// (name, test) of everything here.
pub fn trials() -> Vec<(String, Test)> {
    let mut all: Vec<(String, Test)> = Vec::new();
    for (dtype, _) in DTYPES {
        let target = Target { device: Device::Cuda(0), dtype, mode: GemmMode::Deterministic };
        for &(name, case) in CASES {
            let run = move |_: &_| {
                case(&target);
                Ok(())
            };
            all.push((format!("contract/{dtype}/{name}"), Box::new(run)));
        }
    }
    all.extend(golden::trials());
    all.extend(sweep::trials());
    all.extend(planted::trials());
    all.extend(routes::trials());
    all.extend(lifetime::trials());
    all.extend(decode::trials());
    all.extend(resident::trials());
    all.extend(smoke::trials());
    all
}
