//! Kernels against f64 references, on fresh inputs, odd sizes and poisoned outputs.

mod bits;
mod conv;
mod elementwise;
mod gemm;
mod huge;
mod loss;
mod norm;
mod optim;
mod scan;

use crate::support::Test;

/// (name, test) of all kernels.
pub fn trials() -> Vec<(String, Test)> {
    let families = [
        gemm::trials(),
        scan::trials(),
        conv::trials(),
        loss::trials(),
        norm::trials(),
        optim::trials(),
        elementwise::trials(),
        bits::trials(),
        huge::trials(),
    ];
    families.into_iter().flatten().collect()
}
