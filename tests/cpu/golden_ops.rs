//! Single operations against the golden data: the oracle's and the CPU engine's.
#![allow(clippy::unwrap_used, clippy::panic)]

use mamba_model::cpu::ops::{self as engine, CausalConv, SelectiveScan};
use mamba_model::oracle::conv::Conv;
use mamba_model::oracle::ops;
use mamba_model::oracle::scan::Scan;
use mamba_tests::golden::{Case, relative_error};
use mamba_tests::tolerance::{Checks, Route, bound};

fn scan_of(case: &Case) -> Scan<'_> {
    Scan {
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
    }
}

fn scan_cases() -> impl Iterator<Item = Case> {
    (1..=12).map(|i| Case::read(&format!("scan/scan_{i:02}")))
}

#[test]
fn oracle_scan() {
    let mut checks = Checks::new(Route::Oracle);
    for case in scan_cases() {
        let scan = scan_of(&case);
        let out = scan.forward();
        let g = scan.backward(&out, case.get("d_out"), case.find("d_h_last"));
        let d_a_log: Vec<f64> = g.a.iter().zip(scan.a).map(|(d, a)| d * a).collect();
        let mut pairs = vec![
            ("out", &out.out),
            ("h_last", &out.h_last),
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
        if case.flag("has_z") {
            pairs.extend([("y", &out.y), ("d_z", &g.z)]);
        }
        for (tensor, got) in pairs {
            case.check(&mut checks, &format!("scan/{tensor}"), tensor, got);
        }
    }
    checks.finish();
}

/// The engine's scan has a gate, and takes no gradient of its last state.
#[test]
fn engine_scan() {
    let mut checks = Checks::new(Route::Cpu);
    for case in scan_cases().filter(|c| c.flag("has_z")) {
        let values =
            ["u", "delta", "A", "B", "C", "D", "delta_bias", "z", "h0", "d_out"].map(|n| case.f32(n));
        let [u, delta, a, b, c, d, delta_bias, z, h0, d_out] = &values;
        let oracle = scan_of(&case);
        let scan = SelectiveScan {
            batch: oracle.batch,
            seq_len: oracle.seq_len,
            channels: oracle.channels,
            states: oracle.states,
            u,
            delta,
            a,
            b,
            c,
            d,
            delta_bias,
            z,
            h0,
            reset: None,
        };
        let (out, g) = (scan.forward().unwrap(), scan.backward(d_out).unwrap());
        case.check(&mut checks, "scan/out", "out", &out.out);
        case.check(&mut checks, "scan/h_last", "h_last", &out.h_last);
        let d_a_log: Vec<f32> = g.a.iter().zip(a).map(|(d, a)| d * a).collect();
        // Where the golden gradients hold a part that flows in from the last state, the oracle stands in.
        let without = case.find("d_h_last").map(|_| {
            let saved = oracle.forward();
            oracle.backward(&saved, case.get("d_out"), None)
        });
        let pairs = [
            ("d_u", &g.u, without.as_ref().map(|w| &w.u)),
            ("d_delta", &g.delta, without.as_ref().map(|w| &w.delta)),
            ("d_A", &g.a, without.as_ref().map(|w| &w.a)),
            ("d_B", &g.b, without.as_ref().map(|w| &w.b)),
            ("d_C", &g.c, without.as_ref().map(|w| &w.c)),
            ("d_D", &g.d, without.as_ref().map(|w| &w.d)),
            ("d_delta_bias", &g.delta_bias, without.as_ref().map(|w| &w.delta_bias)),
            ("d_z", &g.z, without.as_ref().map(|w| &w.z)),
        ];
        for (tensor, got, stand_in) in pairs {
            let quantity = format!("scan/{tensor}");
            match stand_in {
                Some(want) => checks.add(&quantity, &case.name, relative_error(got, want), 0.0),
                None => case.check(&mut checks, &quantity, tensor, got),
            }
        }
        if without.is_none() {
            case.check(&mut checks, "scan/d_A_log", "d_A_log", &d_a_log);
        }
    }
    checks.finish();
}

fn conv_of(case: &Case) -> Conv<'_> {
    Conv {
        batch: case.size("batch"),
        seq_len: case.size("seq_len"),
        channels: case.size("d_inner"),
        width: case.size("d_conv"),
        x: case.get("x"),
        weight: case.get("weight"),
        bias: Some(case.get("bias")),
        state: case.get("state_in"),
        reset: None,
    }
}

fn conv_cases() -> impl Iterator<Item = Case> {
    (1..=8).map(|i| Case::read(&format!("conv1d/conv1d_{i:02}")))
}

#[test]
fn oracle_convolution() {
    let mut checks = Checks::new(Route::Oracle);
    for case in conv_cases() {
        let conv = conv_of(&case);
        let out = conv.forward();
        let g = conv.backward(&out.pre, case.get("d_out"), case.find("d_state_out"));
        let pairs = [
            ("out", &out.out),
            ("pre", &out.pre),
            ("state_out", &out.state),
            ("d_x", &g.x),
            ("d_weight", &g.weight),
            ("d_bias", &g.bias),
            ("d_state_in", &g.state),
        ];
        for (tensor, got) in pairs {
            case.check(&mut checks, &format!("conv/{tensor}"), tensor, got);
        }
    }
    checks.finish();
}

/// The engine's convolution takes no gradient of the state it leaves.
#[test]
fn engine_convolution() {
    let mut checks = Checks::new(Route::Cpu);
    for case in conv_cases() {
        let [x, weight, bias, state, d_out] =
            &["x", "weight", "bias", "state_in", "d_out"].map(|n| case.f32(n));
        let oracle = conv_of(&case);
        let conv = CausalConv {
            batch: oracle.batch,
            seq_len: oracle.seq_len,
            channels: oracle.channels,
            width: oracle.width,
            x,
            weight,
            bias: Some(bias),
            state,
            reset: None,
        };
        let (out, g) = (conv.forward().unwrap(), conv.backward(d_out).unwrap());
        case.check(&mut checks, "conv/out", "out", &out.out);
        // Samples are copied, so the state is exact.
        assert_eq!(relative_error(&out.state, case.get("state_out")), 0.0, "{}", case.name);
        case.check(&mut checks, "conv/d_weight", "d_weight", &g.weight);
        case.check(&mut checks, "conv/d_bias", "d_bias", &g.bias);
        if case.flag("has_d_state_out") {
            let want = oracle.backward(&oracle.forward().pre, case.get("d_out"), None);
            checks.add("conv/d_x", &case.name, relative_error(&g.x, &want.x), 0.0);
        } else {
            case.check(&mut checks, "conv/d_x", "d_x", &g.x);
        }
    }
    checks.finish();
}

#[test]
fn rmsnorm() {
    let (mut exact, mut fast) = (Checks::new(Route::Oracle), Checks::new(Route::Cpu));
    for i in 1..=6 {
        let case = Case::read(&format!("ops/rmsnorm_{i:02}"));
        let eps = case.config["eps"].as_f64().unwrap();
        let (x, weight) = (case.get("x"), case.get("weight"));
        let (y, rms) = ops::rmsnorm(x, weight, eps);
        let (d_x, d_weight) = ops::rmsnorm_backward(x, weight, &rms, case.get("d_y"));
        for (tensor, got) in [("y", &y), ("rms", &rms), ("d_x", &d_x), ("d_weight", &d_weight)] {
            case.check(&mut exact, &format!("rmsnorm/{tensor}"), tensor, got);
        }
        let (x, weight) = (case.f32("x"), case.f32("weight"));
        let out = engine::rmsnorm(&x, &weight, eps).unwrap();
        let g = engine::rmsnorm_backward(&x, &weight, &out.rstd, &case.f32("d_y")).unwrap();
        let rms: Vec<f32> = out.rstd.iter().map(|r| 1.0 / r).collect();
        for (tensor, got) in [("y", &out.y), ("rms", &rms), ("d_x", &g.x), ("d_weight", &g.weight)] {
            case.check(&mut fast, &format!("rmsnorm/{tensor}"), tensor, got);
        }
    }
    exact.finish();
    fast.finish();
}

/// Largest relative error of an element. Left out: references below 1e-30, where f32 under- or overflows and only an
/// absolute 1e-30 is asked for, and the neighbourhood of a zero of the slope, where the f32 result cancels.
fn worst_element(got: &[f64], want: &[f64], leave_out: impl Fn(usize) -> bool) -> f64 {
    let relative = |i: usize| {
        let off = (got[i] - want[i]).abs();
        match (want[i].abs() <= 1e-30, leave_out(i)) {
            (true, _) => off / 1e-30 * 1e-7,
            (false, true) => 0.0,
            (false, false) => off / want[i].abs(),
        }
    };
    assert!(got.iter().all(|v| v.is_finite()));
    (0..got.len()).map(relative).fold(0.0, f64::max)
}

/// Values, slopes times the upstream gradient.
type Activation = (&'static str, Vec<f64>, Vec<f64>);

fn check_activations(case: &Case, route: Route, results: [Activation; 2]) {
    let mut checks = Checks::new(route);
    let (x, d_y) = (case.get("x"), case.get("d_y"));
    for (name, y, d_x) in results {
        let (want, want_d) = (case.get(&format!("{name}_y")), case.get(&format!("{name}_d_x")));
        case.check(&mut checks, &format!("{name}/y"), &format!("{name}_y"), &y);
        case.check(&mut checks, &format!("{name}/d_x"), &format!("{name}_d_x"), &d_x);
        let near_zero = |i: usize| name == "silu" && (x[i] + 1.2785).abs() < 0.1;
        let element = worst_element(&y, want, |_| false);
        let slope = worst_element(&d_x, want_d, |i| d_y[i].abs() <= 1e-3 || near_zero(i));
        checks.add(&format!("{name}/element"), "y", element, 0.0);
        checks.add(&format!("{name}/element"), "d_x", slope, 0.0);
        for i in (0..x.len()).filter(|&i| near_zero(i)) {
            assert!((d_x[i] - want_d[i]).abs() < bound("silu/near_zero", route), "{name}'({})", x[i]);
        }
    }
    checks.finish();
}

#[test]
fn activations_element_by_element() {
    let case = Case::read("ops/activations_01");
    let (x, d_y) = (case.get("x"), case.get("d_y"));
    let map = |f: fn(f64) -> f64| x.iter().map(|&x| f(x)).collect::<Vec<f64>>();
    let slopes = |f: fn(f64) -> f64| x.iter().zip(d_y).map(|(&x, d)| d * f(x)).collect::<Vec<f64>>();
    let softplus = ("softplus", map(ops::softplus), slopes(ops::softplus_slope));
    let silu = ("silu", map(ops::silu), slopes(ops::silu_slope));
    check_activations(&case, Route::Oracle, [softplus, silu]);

    let (x, d_y) = (case.f32("x"), case.f32("d_y"));
    let wide = |v: Vec<f32>| v.into_iter().map(f64::from).collect::<Vec<f64>>();
    let slopes = [engine::softplus_backward(&x, &d_y), engine::silu_backward(&x, &d_y)];
    let [softplus_d, silu_d] = slopes.map(|v| wide(v.unwrap()));
    let softplus = ("softplus", wide(engine::softplus(&x)), softplus_d);
    let silu = ("silu", wide(engine::silu(&x)), silu_d);
    check_activations(&case, Route::Cpu, [softplus, silu]);
}
