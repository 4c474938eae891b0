//! The oracle's single operations against the golden data.
#![allow(clippy::unwrap_used, clippy::panic)]

use mamba_model::oracle::conv::Conv;
use mamba_model::oracle::ops;
use mamba_model::oracle::scan::Scan;
use mamba_tests::golden::{Case, relative_error};

/// Both sides are f64 sums in another order: measured at most 9.1e-16.
const F64: f64 = 1e-14;
/// References that are stored as f32: half an f32 ulp, measured at most 3.6e-8.
const F32: f64 = 6e-8;

fn check(case: &Case, name: &str, tensor: &str, got: &[f64], bound: f64) {
    let error = relative_error(got, case.get(tensor));
    println!("{name} {tensor}: {error:.1e}");
    assert!(error < bound, "{name} {tensor}: {error:e} >= {bound:e}");
}

fn scan_case(name: &str, bound: f64) {
    let case = Case::read(&format!("scan/{name}"));
    let scan = Scan {
        batch: case.size("batch"),
        seq_len: case.size("seq_len"),
        channels: case.size("d_inner"),
        states: case.size("d_state"),
        u: case.get("u"),
        delta: case.get("delta"),
        a: case.get("A"),
        b: case.get("B"),
        c: case.get("C"),
        d: case.get("D"),
        delta_bias: case.get("delta_bias"),
        z: case.find("z"),
        h0: case.get("h0"),
        reset: None,
    };
    let out = scan.forward();
    check(&case, name, "out", &out.out, bound);
    check(&case, name, "h_last", &out.h_last, bound);
    if case.flag("has_z") {
        check(&case, name, "y", &out.y, bound);
    }
    let g = scan.backward(&out, case.get("d_out"), case.find("d_h_last"));
    let d_a_log: Vec<f64> = g.a.iter().zip(case.get("A")).map(|(d, a)| d * a).collect();
    let pairs = [
        ("d_u", &g.u),
        ("d_delta", &g.delta),
        ("d_A", &g.a),
        ("d_B", &g.b),
        ("d_C", &g.c),
        ("d_D", &g.d),
        ("d_delta_bias", &g.delta_bias),
        ("d_h0", &g.h0),
        ("d_A_log", &d_a_log),
    ];
    for (tensor, got) in pairs {
        check(&case, name, tensor, got, bound);
    }
    if case.flag("has_z") {
        check(&case, name, "d_z", &g.z, bound);
    }
}

#[test]
fn selective_scan() {
    for i in 1..=12 {
        let stored_as_f32 = [5, 7, 8, 11].contains(&i);
        scan_case(&format!("scan_{i:02}"), if stored_as_f32 { F32 } else { F64 });
    }
}

#[test]
fn causal_convolution() {
    for i in 1..=8 {
        let name = format!("conv1d_{i:02}");
        let case = Case::read(&format!("conv1d/{name}"));
        let conv = Conv {
            batch: case.size("batch"),
            seq_len: case.size("seq_len"),
            channels: case.size("d_inner"),
            width: case.size("d_conv"),
            x: case.get("x"),
            weight: case.get("weight"),
            bias: Some(case.get("bias")),
            state: case.get("state_in"),
            reset: None,
        };
        let out = conv.forward();
        check(&case, &name, "out", &out.out, F64);
        check(&case, &name, "pre", &out.pre, F64);
        check(&case, &name, "state_out", &out.state, F64);
        let g = conv.backward(&out.pre, case.get("d_out"), case.find("d_state_out"));
        check(&case, &name, "d_x", &g.x, F64);
        check(&case, &name, "d_weight", &g.weight, F64);
        check(&case, &name, "d_bias", &g.bias, F64);
        check(&case, &name, "d_state_in", &g.state, F64);
    }
}

#[test]
fn rmsnorm() {
    for i in 1..=6 {
        let name = format!("rmsnorm_{i:02}");
        let case = Case::read(&format!("ops/{name}"));
        let (x, weight) = (case.get("x"), case.get("weight"));
        let (y, rms) = ops::rmsnorm(x, weight, case.config["eps"].as_f64().unwrap());
        check(&case, &name, "y", &y, F64);
        check(&case, &name, "rms", &rms, F64);
        let (d_x, d_weight) = ops::rmsnorm_backward(x, weight, &rms, case.get("d_y"));
        check(&case, &name, "d_x", &d_x, F64);
        check(&case, &name, "d_weight", &d_weight, F64);
    }
}

#[test]
fn activations_element_by_element() {
    let case = Case::read("ops/activations_01");
    type Function = fn(f64) -> f64;
    let functions: [(&str, Function, Function); 2] =
        [("softplus", ops::softplus, ops::softplus_slope), ("silu", ops::silu, ops::silu_slope)];
    let (x, d_y) = (case.get("x"), case.get("d_y"));
    for (name, f, slope) in functions {
        let (want, want_slope) = (case.get(&format!("{name}_y")), case.get(&format!("{name}_d_x")));
        for i in 0..x.len() {
            // Relative 1e-12; below 1e-30 the reference's own underflow decides, and the slope of silu cancels near -1.28.
            let close = |got: f64, want: f64| {
                (got - want).abs() <= 1e-12 * want.abs() + 1e-15_f64.min(1e-30 + 1e-13 * want.abs())
            };
            assert!(close(f(x[i]), want[i]), "{name}({}) = {} != {}", x[i], f(x[i]), want[i]);
            let got = d_y[i] * slope(x[i]);
            assert!(
                (got - want_slope[i]).abs() <= 1e-12 * want_slope[i].abs() + 1e-15,
                "{name}'({}) = {got}",
                x[i]
            );
        }
    }
}
