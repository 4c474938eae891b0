//! Kernels against f64 references, on fresh inputs, odd sizes and poisoned outputs.

mod conv;
mod gemm;
mod loss;
mod norm;
mod optim;
mod scan;

use crate::support::Test;

/// (name, test) of all kernels.
pub fn trials() -> Vec<(String, Test)> {
    [gemm::trials(), scan::trials(), conv::trials(), loss::trials(), norm::trials(), optim::trials()]
        .into_iter()
        .flatten()
        .collect()
}
