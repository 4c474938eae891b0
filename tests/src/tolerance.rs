//! Every bound that a comparison with the golden data or with the oracle must keep, with the error measured beside it.
//!
//! A quantity is looked up by its name, then by ever shorter prefixes: `tbptt/grad/a_log`, `tbptt/grad`, `tbptt`.
#![allow(clippy::panic)]

use std::collections::BTreeMap;

/// What computed the compared values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The f64 oracle.
    Oracle,
    /// The f32 engine of the CPU.
    Cpu,
    /// A GPU in exact f32.
    GpuF32,
    /// A GPU in f32 storage with TF32 products.
    GpuTf32,
    /// A GPU in bf16.
    GpuBf16,
    /// A GPU in f16.
    GpuF16,
}

/// One line of the table.
#[derive(Debug)]
pub struct Bound {
    /// A quantity, or a prefix of several.
    pub quantity: &'static str,
    /// What computed it.
    pub route: Route,
    /// Largest error seen.
    pub measured: f64,
    /// Largest error allowed.
    pub bound: f64,
}

const fn row(quantity: &'static str, route: Route, measured: f64, bound: f64) -> Bound {
    Bound { quantity, route, measured, bound }
}

use Route::{Cpu, GpuBf16, GpuF16, GpuF32, GpuTf32, Oracle};

/// The table.
pub const TABLE: &[Bound] = &[
    row("scan", Oracle, 9.1e-16, 5e-15),
    row("conv", Oracle, 6e-16, 3e-15),
    row("rmsnorm", Oracle, 6.6e-16, 3e-15),
    row("softplus", Oracle, 9.1e-17, 1e-15),
    row("softplus/element", Oracle, 4.3e-16, 3e-15),
    row("silu", Oracle, 1e-16, 1e-15),
    row("silu/element", Oracle, 1.4e-15, 5e-15),
    row("silu/near_zero", Oracle, 2.2e-16, 1e-15),
    row("tbptt", Oracle, 1.4e-15, 1e-14),
    row("lm", Oracle, 2.7e-15, 1e-14),
    row("run", Oracle, 2.9e-15, 2e-14),
    row("run/update", Oracle, 2.2e-14, 1e-13),
    row("scan/out", Cpu, 2.1e-7, 6e-7),
    row("scan/h_last", Cpu, 4.9e-7, 1.5e-6),
    row("scan/d_u", Cpu, 1.9e-7, 6e-7),
    row("scan/d_delta", Cpu, 5.3e-7, 1.5e-6),
    row("scan/d_A", Cpu, 5.8e-7, 2e-6),
    row("scan/d_B", Cpu, 5.4e-7, 1.5e-6),
    row("scan/d_C", Cpu, 4e-7, 1.2e-6),
    row("scan/d_D", Cpu, 4.9e-7, 1.5e-6),
    row("scan/d_z", Cpu, 2.1e-7, 6e-7),
    row("scan/d_delta_bias", Cpu, 1.5e-6, 5e-6),
    row("scan/d_A_log", Cpu, 5.3e-7, 1.5e-6),
    row("conv/out", Cpu, 7.7e-8, 2e-7),
    row("conv/d_x", Cpu, 8.9e-8, 3e-7),
    row("conv/d_weight", Cpu, 1.7e-7, 5e-7),
    row("conv/d_bias", Cpu, 1.6e-7, 5e-7),
    row("rmsnorm", Cpu, 1.5e-7, 4e-7),
    row("softplus/y", Cpu, 3e-9, 1e-8),
    row("softplus/d_x", Cpu, 3.1e-8, 1e-7),
    row("softplus/element", Cpu, 2.3e-7, 7e-7),
    row("silu/y", Cpu, 6.3e-9, 2e-8),
    row("silu/d_x", Cpu, 5.7e-8, 2e-7),
    row("silu/element", Cpu, 6.1e-7, 2e-6),
    row("silu/near_zero", Cpu, 6e-8, 2e-7),
    row("tbptt/temporal", Cpu, 2.3e-7, 7e-7),
    row("tbptt/conv_state_out", Cpu, 2.1e-7, 6e-7),
    row("tbptt/ssm_state_out", Cpu, 3.3e-7, 1e-6),
    row("tbptt/d_input", Cpu, 3.8e-7, 1e-6),
    row("tbptt/grad", Cpu, 8.5e-7, 2.5e-6),
    row("tbptt/grad/in_proj_w", Cpu, 4.6e-7, 1.5e-6),
    row("tbptt/grad/out_proj_w", Cpu, 4.5e-7, 1.5e-6),
    row("tbptt/grad/norm_f_weight", Cpu, 2.8e-7, 8e-7),
    row("tbptt/grad/input_proj_w", Cpu, 3.6e-7, 1e-6),
    row("tbptt/grad/input_proj_b", Cpu, 4e-7, 1.2e-6),
    row("lm/logits", Cpu, 4.4e-7, 1.5e-6),
    row("lm/loss", Cpu, 2.2e-8, 1e-7),
    row("lm/grad", Cpu, 2.2e-6, 6e-6),
    row("run/grad_norm", Cpu, 1.6e-7, 5e-7),
    row("run/loss", Cpu, 1.3e-6, 4e-6),
    row("run/final", Cpu, 5.6e-7, 2e-6),
    row("run/exp_avg", Cpu, 1.3e-6, 4e-6),
    row("run/exp_avg_sq", Cpu, 2.7e-6, 8e-6),
    row("run/update/norm_weight", Cpu, 6.3e-5, 2e-4),
    row("run/update/in_proj_w", Cpu, 9.6e-6, 3e-5),
    row("run/update/conv1d_weight", Cpu, 3.7e-5, 1.2e-4),
    row("run/update/conv1d_bias", Cpu, 5.9e-6, 2e-5),
    row("run/update/x_proj_w", Cpu, 1.1e-5, 4e-5),
    row("run/update/dt_proj_w", Cpu, 5.4e-5, 2e-4),
    row("run/update/dt_proj_b", Cpu, 2.7e-4, 8e-4),
    row("run/update/a_log", Cpu, 1.8e-4, 6e-4),
    row("run/update/d_param", Cpu, 6.9e-5, 2e-4),
    row("run/update/out_proj_w", Cpu, 1.4e-5, 4e-5),
    row("run/update/norm_f_weight", Cpu, 8.1e-5, 2.5e-4),
    row("run/update/input_proj_w", Cpu, 2.4e-5, 8e-5),
    row("run/update/input_proj_b", Cpu, 4.9e-6, 1.5e-5),
    row("sweep/temporal", Cpu, 1.1e-6, 3e-6),
    row("sweep/state", Cpu, 6.7e-7, 2e-6),
    row("sweep/d_input", Cpu, 4.2e-6, 1e-5),
    row("sweep/grad", Cpu, 6.8e-6, 2e-5),
    row("sweep/extreme", Cpu, 4.5e-6, 1.5e-5),
    row("sweep/extreme/temporal", Cpu, 3.6e-7, 1.2e-6),
    row("sweep/extreme/state", Cpu, 3.7e-7, 1.2e-6),
    row("sweep/scan", Cpu, 1e-6, 3e-6),
    row("sweep/conv", Cpu, 2e-7, 6e-7),
    row("sweep/lm/logits", Cpu, 2.8e-7, 1e-6),
    row("sweep/lm/loss", Cpu, 1.4e-8, 5e-8),
    row("sweep/lm/grad", Cpu, 1.1e-6, 4e-6),
    row("tbptt/temporal", GpuF32, 2.9e-7, 1e-6),
    row("tbptt/conv_state_out", GpuF32, 2.6e-7, 8e-7),
    row("tbptt/ssm_state_out", GpuF32, 1.8e-6, 6e-6),
    row("tbptt/d_input", GpuF32, 4.9e-7, 1.5e-6),
    row("tbptt/grad", GpuF32, 1.9e-6, 6e-6),
    row("lm/loss", GpuF32, 3.7e-8, 1.2e-7),
    row("lm/grad", GpuF32, 2.2e-6, 8e-6),
    row("sweep/temporal", GpuF32, 3.3e-7, 1e-6),
    row("sweep/state", GpuF32, 7.1e-6, 2.5e-5),
    row("sweep/d_input", GpuF32, 7.1e-7, 2.5e-6),
    row("sweep/grad", GpuF32, 8.5e-6, 3e-5),
    row("sweep/grad/bias", GpuF32, 1.8e-5, 6e-5),
    row("sweep/extreme", GpuF32, 6.9e-7, 2.5e-6),
    row("sweep/lm/loss", GpuF32, 3.3e-8, 1e-7),
    row("sweep/lm/grad", GpuF32, 3.4e-6, 1.2e-5),
    row("tbptt/temporal", GpuTf32, 4.6e-4, 1.5e-3),
    row("tbptt/conv_state_out", GpuTf32, 4.8e-4, 1.5e-3),
    row("tbptt/ssm_state_out", GpuTf32, 8.9e-4, 3e-3),
    row("tbptt/d_input", GpuTf32, 8.5e-4, 3e-3),
    row("tbptt/grad", GpuTf32, 3.5e-3, 1.2e-2),
    row("lm/loss", GpuTf32, 1.8e-4, 6e-4),
    row("lm/grad", GpuTf32, 2.9e-3, 1e-2),
    row("sweep/temporal", GpuTf32, 5.6e-4, 2e-3),
    row("sweep/state", GpuTf32, 7.4e-4, 2.5e-3),
    row("sweep/d_input", GpuTf32, 1.2e-3, 4e-3),
    row("sweep/grad", GpuTf32, 9.4e-3, 3e-2),
    row("sweep/grad/bias", GpuTf32, 9.6e-3, 3e-2),
    row("sweep/extreme", GpuTf32, 1.7e-3, 6e-3),
    row("sweep/lm/loss", GpuTf32, 1.1e-5, 4e-5),
    row("sweep/lm/grad", GpuTf32, 4.3e-3, 1.5e-2),
    row("tbptt/temporal", GpuBf16, 4.2e-3, 1.5e-2),
    row("tbptt/conv_state_out", GpuBf16, 4.5e-3, 1.5e-2),
    row("tbptt/ssm_state_out", GpuBf16, 6.5e-3, 2e-2),
    row("tbptt/d_input", GpuBf16, 6.7e-3, 2.5e-2),
    row("tbptt/grad", GpuBf16, 1.9e-2, 6e-2),
    row("lm/loss", GpuBf16, 7e-4, 2.5e-3),
    row("lm/grad", GpuBf16, 6.6e-2, 2e-1),
    row("sweep/temporal", GpuBf16, 5.3e-3, 2e-2),
    row("sweep/state", GpuBf16, 8.8e-3, 3e-2),
    row("sweep/d_input", GpuBf16, 2.2e-2, 8e-2),
    row("sweep/grad", GpuBf16, 6.5e-2, 2e-1),
    row("sweep/grad/bias", GpuBf16, 5.8e-2, 2e-1),
    row("sweep/extreme", GpuBf16, 1.7e-2, 6e-2),
    row("sweep/lm/loss", GpuBf16, 4.4e-4, 1.5e-3),
    row("sweep/lm/grad", GpuBf16, 5.3e-2, 2e-1),
    row("tbptt/temporal", GpuF16, 5.4e-4, 2e-3),
    row("tbptt/conv_state_out", GpuF16, 5.6e-4, 2e-3),
    row("tbptt/ssm_state_out", GpuF16, 9.4e-4, 3e-3),
    row("tbptt/d_input", GpuF16, 7.8e-4, 2.5e-3),
    row("tbptt/grad", GpuF16, 3.3e-3, 1e-2),
    row("lm/loss", GpuF16, 1.9e-4, 6e-4),
    row("lm/grad", GpuF16, 5.3e-3, 2e-2),
    row("sweep/temporal", GpuF16, 8.1e-4, 2.5e-3),
    row("sweep/state", GpuF16, 7.1e-4, 2.5e-3),
    row("sweep/d_input", GpuF16, 1.6e-3, 5e-3),
    row("sweep/grad", GpuF16, 6e-3, 2e-2),
    row("sweep/grad/bias", GpuF16, 1.5e-2, 5e-2),
    row("sweep/extreme", GpuF16, 2.5e-3, 8e-3),
    row("sweep/lm/loss", GpuF16, 5e-5, 1.5e-4),
    row("sweep/lm/grad", GpuF16, 2.5e-3, 8e-3),
];

/// Limits that the golden data suggest for f32 with f32 accumulation: ten times what a plain f32 run showed.
pub const SUGGESTED: &[(&str, f64)] = &[
    ("scan/out", 2e-6),
    ("scan/h_last", 2e-5),
    ("scan/d_u", 2e-6),
    ("scan/d_delta", 5e-6),
    ("scan/d_A", 1e-5),
    ("scan/d_B", 1e-5),
    ("scan/d_C", 5e-6),
    ("scan/d_D", 2e-6),
    ("scan/d_z", 2e-6),
    ("scan/d_delta_bias", 2e-5),
    ("scan/d_A_log", 5e-6),
    ("conv/out", 1e-6),
    ("conv/d_x", 1e-6),
    ("conv/d_weight", 2e-6),
    ("conv/d_bias", 2e-6),
    ("rmsnorm", 1e-6),
    ("softplus/y", 1e-6),
    ("softplus/d_x", 1e-6),
    ("silu/y", 1e-6),
    ("silu/d_x", 2e-6),
    ("softplus/element", 2e-5),
    ("silu/element", 2e-5),
    ("tbptt/temporal", 5e-6),
    ("tbptt/conv_state_out", 5e-6),
    ("tbptt/ssm_state_out", 5e-6),
    ("tbptt/d_input", 1e-5),
    ("tbptt/grad", 1e-5),
    ("tbptt/grad/in_proj_w", 5e-6),
    ("tbptt/grad/conv1d_bias", 5e-6),
    ("tbptt/grad/out_proj_w", 5e-6),
    ("tbptt/grad/norm_f_weight", 5e-6),
    ("tbptt/grad/input_proj_w", 5e-6),
    ("tbptt/grad/input_proj_b", 5e-6),
    ("run/grad_norm", 2e-6),
    ("run/loss", 2e-5),
    ("run/final", 5e-5),
    ("run/exp_avg", 2e-5),
    ("run/exp_avg_sq", 5e-5),
    ("run/update/norm_weight", 1e-3),
    ("run/update/in_proj_w", 1e-4),
    ("run/update/conv1d_weight", 5e-4),
    ("run/update/conv1d_bias", 1e-4),
    ("run/update/x_proj_w", 5e-4),
    ("run/update/dt_proj_w", 1e-3),
    ("run/update/dt_proj_b", 5e-3),
    ("run/update/a_log", 2e-3),
    ("run/update/d_param", 1e-3),
    ("run/update/out_proj_w", 1e-4),
    ("run/update/norm_f_weight", 1e-3),
    ("run/update/input_proj_w", 5e-4),
    ("run/update/input_proj_b", 1e-4),
    ("lm/logits", 5e-6),
    ("lm/loss", 5e-6),
    ("lm/grad", 2e-5),
];

/// What `find` gives for the longest prefix of whole parts of `quantity`.
fn by_prefix<T>(quantity: &str, find: impl Fn(&str) -> Option<T>) -> Option<T> {
    let ends = quantity.rmatch_indices('/').map(|(at, _)| at);
    std::iter::once(quantity.len()).chain(ends).find_map(|end| find(&quantity[..end]))
}

/// The bound of a quantity; panics where the table has none.
pub fn bound(quantity: &str, route: Route) -> f64 {
    let find = |prefix: &str| TABLE.iter().find(|b| b.route == route && b.quantity == prefix);
    by_prefix(quantity, find).unwrap_or_else(|| panic!("no bound for {quantity} on {route:?}")).bound
}

/// Collects errors by quantity, prints the largest of each, and holds them against the table.
#[derive(Debug)]
pub struct Checks {
    route: Route,
    worst: BTreeMap<String, (f64, String)>,
    failures: Vec<String>,
}

impl Checks {
    /// Checks of what `route` computed.
    pub fn new(route: Route) -> Self {
        Self { route, worst: BTreeMap::new(), failures: Vec::new() }
    }

    /// Adds an error. `rounding` is what the stored reference itself may be off; it matters to the oracle only, and then
    /// the error does not enter the printed maximum.
    pub fn add(&mut self, quantity: &str, place: &str, error: f64, rounding: f64) {
        let bound = bound(quantity, self.route);
        let rounding = if self.route == Route::Oracle { rounding } else { 0.0 };
        // A NaN is no pass.
        if !matches!(error.partial_cmp(&(bound + rounding)), Some(std::cmp::Ordering::Less)) {
            self.failures
                .push(format!("{place} {quantity}: {error:.2e}, bound {bound:.0e} + {rounding:.0e}"));
        }
        if rounding == 0.0 {
            let worst = self.worst.entry(quantity.to_owned()).or_insert((-1.0, String::new()));
            if error > worst.0 {
                *worst = (error, place.to_owned());
            }
        }
    }

    /// Prints the largest errors; panics where one was out of bounds or none was added.
    pub fn finish(self) {
        for (quantity, (error, place)) in &self.worst {
            println!("{:?} {quantity}: {error:.1e} at {place}", self.route);
        }
        assert!(!self.worst.is_empty(), "nothing was compared");
        let (count, shown) = (self.failures.len(), self.failures.iter().take(8).cloned().collect::<Vec<_>>());
        assert!(count == 0, "{count} out of bounds, such as\n{}", shown.join("\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_above_what_was_measured_and_close_to_it() {
        for b in TABLE {
            assert!(b.measured < b.bound, "{b:?}");
            assert!(b.bound <= 16.0 * b.measured.max(1e-15), "{b:?} is loose");
        }
    }

    #[test]
    fn f32_keeps_the_suggested_limits() {
        for &(quantity, limit) in SUGGESTED {
            assert!(bound(quantity, Route::Cpu) <= limit, "{quantity}");
        }
    }

    #[test]
    fn each_line_is_there_once() {
        for (i, b) in TABLE.iter().enumerate() {
            let same = |o: &&Bound| o.quantity == b.quantity && o.route == b.route;
            assert_eq!(TABLE[i..].iter().filter(same).count(), 1, "{b:?}");
        }
    }

    #[test]
    fn a_failed_check_and_an_empty_one_panic() {
        let caught = |error: Option<f64>| {
            std::panic::catch_unwind(|| {
                let mut checks = Checks::new(Route::Cpu);
                if let Some(error) = error {
                    checks.add("scan/out", "case", error, 0.0);
                }
                checks.finish();
            })
            .is_err()
        };
        assert_eq!([Some(0.0), Some(1.0), Some(f64::NAN), None].map(caught), [false, true, true, true]);
    }
}
