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

/// The table.
pub const TABLE: &[Bound] = &[];

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
    ("conv/state_out", 1e-6),
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

    /// Adds an error. `rounding` is what the stored reference itself may be off; where it is not zero the error does not
    /// enter the printed maximum.
    pub fn add(&mut self, quantity: &str, place: &str, error: f64, rounding: f64) {
        let bound = bound(quantity, self.route);
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
        assert!(self.failures.is_empty(), "\n{}", self.failures.join("\n"));
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
