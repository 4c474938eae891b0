//! exp, sigmoid, silu and softplus on vectors. No branch, no table; NaN in, NaN out.

use pulp::Simd;

/// 1.5 · 2^23 + 127: adding it rounds to an integer k whose low bits are the exponent field of 2^k.
const ROUND: f32 = 12_582_912.0 + 127.0;
/// 2^f on [-0.5, 0.5], highest power first; the constant is 1. Largest relative error 2e-8.
const EXP2: [f32; 6] =
    [1.535_336_2e-4, 1.339_887_4e-3, 9.618_437e-3, 5.550_332_5e-2, 2.402_264_8e-1, 6.931_472e-1];
/// 2·atanh(q)/q = 2·Σ q^(2i)/(2i+1), highest power first. On q ≤ 1/3 the rest is below 2e-8.
const ATANH: [f32; 7] = [2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0, 2.0];
/// (1 - e^-y)/y = Σ (-y)^i/(i+1)!, highest power first. On y < 0.5 the rest is below 1e-8.
const EXPM1: [f32; 8] =
    [-1.0 / 40_320.0, 1.0 / 5_040.0, -1.0 / 720.0, 1.0 / 120.0, -1.0 / 24.0, 1.0 / 6.0, -0.5, 1.0];
/// Above it softplus is the identity.
pub(super) const SOFTPLUS_LINEAR: f32 = 20.0;

/// `x` where it is not below `floor`; a NaN stays.
#[inline(always)]
fn at_least<S: Simd>(s: S, x: S::f32s, floor: f32) -> S::f32s {
    let floor = s.splat_f32s(floor);
    if S::IS_SCALAR {
        return s.select_f32s(s.less_than_f32s(x, floor), floor, x);
    }
    // The vector maximum gives its second operand where either is NaN, or a NaN.
    s.max_f32s(floor, x)
}

/// `x` where it is not above `ceiling`; a NaN stays.
#[inline(always)]
fn at_most<S: Simd>(s: S, x: S::f32s, ceiling: f32) -> S::f32s {
    let ceiling = s.splat_f32s(ceiling);
    s.select_f32s(s.greater_than_f32s(x, ceiling), ceiling, x)
}

#[inline(always)]
fn horner<S: Simd, const N: usize>(s: S, x: S::f32s, coefficients: [f32; N]) -> S::f32s {
    let mut p = s.splat_f32s(coefficients[0]);
    for &c in &coefficients[1..] {
        p = s.mul_add_f32s(p, x, s.splat_f32s(c));
    }
    p
}

/// 2^k for the integer k whose rounded sum with [`ROUND`] is `t`.
#[inline(always)]
fn power_of_two<S: Simd>(s: S, t: S::f32s) -> S::f32s {
    let bits = s.wrapping_dyn_shl_u32s(s.transmute_u32s_f32s(t), s.splat_u32s(23));
    s.transmute_f32s_u32s(bits)
}

/// 2^x for x ≤ 0. Below -125 it stays at 2^-125, which no f32 sum of the scan can see.
#[inline(always)]
pub(super) fn exp2_nonpositive<S: Simd>(s: S, x: S::f32s) -> S::f32s {
    let x = at_least(s, x, -125.0);
    let t = s.add_f32s(x, s.splat_f32s(ROUND));
    let f = s.sub_f32s(x, s.sub_f32s(t, s.splat_f32s(ROUND)));
    let p = s.mul_add_f32s(horner(s, f, EXP2), f, s.splat_f32s(1.0));
    // A product, not an integer sum of exponents: it keeps a NaN.
    s.mul_f32s(p, power_of_two(s, t))
}

/// e^x over the whole range, subnormal results and overflow to infinity included.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::f32s) -> S::f32s {
    // log2 e in two parts.
    const HI: f32 = std::f32::consts::LOG2_E;
    const LO: f32 = 1.925_963e-8;
    let x = at_most(s, at_least(s, x, -104.0), 89.0);
    let round = s.splat_f32s(ROUND);
    let k = s.sub_f32s(s.mul_add_f32s(x, s.splat_f32s(HI), round), round);
    let f = s.mul_add_f32s(x, s.splat_f32s(HI), s.neg_f32s(k));
    let f = s.mul_add_f32s(x, s.splat_f32s(LO), f);
    let p = s.mul_add_f32s(horner(s, f, EXP2), f, s.splat_f32s(1.0));
    // 2^k in two factors, since k runs from -150 to 128.
    let half = s.mul_add_f32s(k, s.splat_f32s(0.5), round);
    let rest = s.add_f32s(s.sub_f32s(k, s.sub_f32s(half, round)), round);
    s.mul_f32s(s.mul_f32s(p, power_of_two(s, half)), power_of_two(s, rest))
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(super) fn sigmoid<S: Simd>(s: S, x: S::f32s) -> S::f32s {
    let one = s.splat_f32s(1.0);
    s.div_f32s(one, s.add_f32s(one, exp(s, s.neg_f32s(x))))
}

/// x · sigmoid(x).
#[inline(always)]
pub(super) fn silu<S: Simd>(s: S, x: S::f32s) -> S::f32s {
    s.mul_f32s(x, sigmoid(s, x))
}

/// silu(x) and its derivative σ·(1 + x·(1 - σ)).
#[inline(always)]
pub(super) fn silu_with_slope<S: Simd>(s: S, x: S::f32s) -> (S::f32s, S::f32s) {
    let one = s.splat_f32s(1.0);
    let e = exp(s, s.neg_f32s(x));
    let sigma = s.div_f32s(one, s.add_f32s(one, e));
    // 1 - σ without cancellation; e may be infinite on the other side.
    let negative = s.less_than_f32s(x, s.splat_f32s(0.0));
    let rest = s.select_f32s(negative, s.sub_f32s(one, sigma), s.mul_f32s(e, sigma));
    let inner = s.mul_add_f32s(x, rest, one);
    (s.mul_f32s(x, sigma), s.mul_f32s(sigma, inner))
}

/// log(1 + e^x), the identity above 20. Accurate where it is tiny.
#[inline(always)]
pub(super) fn softplus<S: Simd>(s: S, x: S::f32s) -> S::f32s {
    let zero = s.splat_f32s(0.0);
    // max(x, 0) + log1p(w) with w = e^-|x|, and log1p(w) = 2·atanh(w / (2 + w)).
    let w = exp(s, s.neg_f32s(s.abs_f32s(x)));
    let q = s.div_f32s(w, s.add_f32s(w, s.splat_f32s(2.0)));
    let log1p = s.mul_f32s(q, horner(s, s.mul_f32s(q, q), ATANH));
    let positive = s.select_f32s(s.greater_than_f32s(x, zero), x, zero);
    let linear = s.greater_than_f32s(x, s.splat_f32s(SOFTPLUS_LINEAR));
    s.select_f32s(linear, x, s.add_f32s(positive, log1p))
}

/// The derivative of softplus where its value is `y`: 1 - e^-y, which is the sigmoid of the argument.
#[inline(always)]
pub(super) fn softplus_slope<S: Simd>(s: S, y: S::f32s) -> S::f32s {
    let near = s.less_than_f32s(y, s.splat_f32s(0.5));
    let scaled = s.mul_f32s(y, s.splat_f32s(-std::f32::consts::LOG2_E));
    let far = s.sub_f32s(s.splat_f32s(1.0), exp2_nonpositive(s, scaled));
    s.select_f32s(near, s.mul_f32s(y, horner(s, y, EXPM1)), far)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pulp::{Arch, Scalar, WithSimd};

    /// One of the functions over a slice, in the widest vectors of this machine.
    struct Map<'a> {
        x: &'a mut [f32],
        op: Op,
    }

    #[derive(Clone, Copy)]
    enum Op {
        Exp,
        Exp2,
        Sigmoid,
        Silu,
        SiluSlope,
        Softplus,
        SoftplusSlope,
    }

    impl WithSimd for Map<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, s: S) {
            for x in self.x.chunks_mut(S::F32_LANES) {
                let v = s.partial_load_f32s(x);
                let y = match self.op {
                    Op::Exp => exp(s, v),
                    Op::Exp2 => exp2_nonpositive(s, v),
                    Op::Sigmoid => sigmoid(s, v),
                    Op::Silu => silu(s, v),
                    Op::SiluSlope => silu_with_slope(s, v).1,
                    Op::Softplus => softplus(s, v),
                    Op::SoftplusSlope => softplus_slope(s, v),
                };
                s.partial_store_f32s(x, y);
            }
        }
    }

    /// Also asserts that one lane at a time gives the same bits.
    fn map(op: Op, x: &[f32]) -> Vec<f32> {
        let (mut wide, mut narrow) = (x.to_vec(), x.to_vec());
        Arch::new().dispatch(Map { x: &mut wide, op });
        Map { x: &mut narrow, op }.with_simd(Scalar);
        let differ = wide.iter().zip(&narrow).position(|(a, b)| a.to_bits() != b.to_bits() && !a.is_nan());
        assert_eq!(differ, None, "vectors and scalars");
        assert!(wide.iter().zip(&narrow).all(|(a, b)| a.is_nan() == b.is_nan()));
        wide
    }

    fn grid(lo: f32, hi: f32) -> Vec<f32> {
        let n = 400_000;
        (0..=n).map(|i| lo + (hi - lo) * (i as f32 / n as f32)).collect()
    }

    /// Largest relative error where the true value is a normal number.
    fn worst(op: Op, x: &[f32], truth: impl Fn(f64) -> f64) -> f64 {
        let relative = |(&x, &y): (&f32, &f32)| {
            let want = truth(f64::from(x));
            let e = (f64::from(y) - want).abs() / want.abs();
            if want.abs() < 1.2e-38 { 0.0 } else { e }
        };
        x.iter().zip(&map(op, x)).map(relative).fold(0.0, f64::max)
    }

    fn true_sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + libm::exp(-x))
    }

    fn true_softplus(x: f64) -> f64 {
        if x > 20.0 { x } else { libm::log1p(libm::exp(x)) }
    }

    #[test]
    fn close_to_f64_on_dense_grids() {
        let ulp = f64::from(f32::EPSILON);
        let cases: [(&str, f64, f64); 6] = [
            // Measured 0.77, 0.64, 1.18, 1.39, 2.17, 1.54.
            ("exp", worst(Op::Exp, &grid(-87.0, 88.7), libm::exp), 1.0),
            ("exp2", worst(Op::Exp2, &grid(-124.9, 0.0), libm::exp2), 0.9),
            ("sigmoid", worst(Op::Sigmoid, &grid(-86.0, 90.0), true_sigmoid), 1.6),
            ("silu", worst(Op::Silu, &grid(-80.0, 80.0), |x| x * true_sigmoid(x)), 1.9),
            ("softplus", worst(Op::Softplus, &grid(-86.0, 30.0), true_softplus), 2.8),
            ("softplus'", worst(Op::SoftplusSlope, &grid(0.0, 30.0), |y| -libm::expm1(-y)), 2.0),
        ];
        for (name, error, bound) in cases {
            println!("{name}: {:.2} ulp", error / ulp);
            assert!(error <= bound * ulp, "{name}: {:.2} ulp, bound {bound}", error / ulp);
        }
    }

    #[test]
    fn silu_slope_is_close_to_f64() {
        let x = grid(-60.0, 60.0);
        let truth = |x: f64| true_sigmoid(x) * (1.0 + x * (1.0 - true_sigmoid(x)));
        let error = |(&x, &y): (&f32, &f32)| (f64::from(y) - truth(f64::from(x))).abs();
        let worst = x.iter().zip(&map(Op::SiluSlope, &x)).map(error).fold(0.0, f64::max);
        println!("silu': {worst:.2e}");
        // Measured 2.0e-7.
        assert!(worst < 3e-7, "{worst:.2e}");
    }

    #[test]
    fn ends_of_the_range() {
        let inf = f32::INFINITY;
        let nan = f32::NAN;
        let payload = f32::from_bits(0x7fc0_01ff);
        assert_eq!(map(Op::Exp, &[inf, -inf, 0.0, -0.0, 89.5, -200.0]), [inf, 0.0, 1.0, 1.0, inf, 0.0]);
        // Subnormal results, to their own precision: e^-95 and e^-103.
        let small = map(Op::Exp, &[-95.0, -103.0]);
        assert!((f64::from(small[0]) - libm::exp(-95.0)).abs() < 1.5e-45, "{small:?}");
        assert!((f64::from(small[1]) - libm::exp(-103.0)).abs() < 1.5e-45, "{small:?}");
        assert_eq!(map(Op::Exp2, &[0.0, -0.0, -1.0, -13.0]), [1.0, 1.0, 0.5, 0.5f32.powi(13)]);
        assert!(map(Op::Exp2, &[-126.0, -1e30, -inf]).iter().all(|&y| y <= 0.5f32.powi(125)));
        assert_eq!(map(Op::Softplus, &[inf, 21.0, 1e30, -inf, -300.0]), [inf, 21.0, 1e30, 0.0, 0.0]);
        assert_eq!(map(Op::Softplus, &[20.000_002])[0], 20.000_002);
        assert_eq!(map(Op::SoftplusSlope, &[inf, 20.5, 0.0, 1e-38, 1e-44]), [1.0, 1.0, 0.0, 1e-38, 1e-44]);
        assert_eq!(map(Op::Sigmoid, &[inf, -inf, 0.0]), [1.0, 0.0, 0.5]);
        assert_eq!(map(Op::Silu, &[inf])[0], inf);
        for op in [Op::Exp, Op::Exp2, Op::Sigmoid, Op::Silu, Op::SiluSlope, Op::Softplus, Op::SoftplusSlope] {
            assert!(map(op, &[nan, -nan, payload, -payload]).iter().all(|y| y.is_nan()));
        }
    }
}
