//! exp, sigmoid, silu and softplus on vectors. No branch, no table; NaN in, NaN out.

use pulp::Simd;

/// 1.5 · 2^23 + 127: adding it rounds to an integer k whose low bits are the exponent field of 2^k.
const ROUND: f32 = 12_582_912.0 + 127.0;
/// 2^f on [-0.5, 0.5], highest power first; the constant is 1. Largest relative error 2e-8.
const EXP2: [f32; 6] =
    [1.535_336_2e-4, 1.339_887_4e-3, 9.618_437e-3, 5.550_332_5e-2, 2.402_264_8e-1, 6.931_472e-1];
/// 2·atanh(q)/q = 2·Σ q^(2i)/(2i+1), highest power first. On q ≤ 1/3 the rest is below 2e-8.
const ATANH: [f32; 7] = [2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0, 2.0];
/// Above it softplus is the identity.
pub(super) const SOFTPLUS_LINEAR: f32 = 20.0;

/// `x` where it is not below `floor`; a NaN stays.
#[inline(always)]
fn at_least<S: Simd>(s: S, x: S::f32s, floor: f32) -> S::f32s {
    let floor = s.splat_f32s(floor);
    s.select_f32s(s.less_than_f32s(x, floor), floor, x)
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
    let sigma = sigmoid(s, x);
    let inner = s.mul_add_f32s(x, s.sub_f32s(one, sigma), one);
    (s.mul_f32s(x, sigma), s.mul_f32s(sigma, inner))
}

/// e^-|x| and log(1 + e^-|x|), accurate where they are tiny.
#[inline(always)]
fn log1p_exp_neg_abs<S: Simd>(s: S, x: S::f32s) -> (S::f32s, S::f32s) {
    let w = exp(s, s.neg_f32s(s.abs_f32s(x)));
    let q = s.div_f32s(w, s.add_f32s(w, s.splat_f32s(2.0)));
    (w, s.mul_f32s(q, horner(s, s.mul_f32s(q, q), ATANH)))
}

#[inline(always)]
fn softplus_from<S: Simd>(s: S, x: S::f32s, log1p: S::f32s) -> S::f32s {
    let zero = s.splat_f32s(0.0);
    let positive = s.select_f32s(s.greater_than_f32s(x, zero), x, zero);
    let linear = s.greater_than_f32s(x, s.splat_f32s(SOFTPLUS_LINEAR));
    s.select_f32s(linear, x, s.add_f32s(positive, log1p))
}

/// log(1 + e^x), the identity above 20.
#[inline(always)]
pub(super) fn softplus<S: Simd>(s: S, x: S::f32s) -> S::f32s {
    softplus_from(s, x, log1p_exp_neg_abs(s, x).1)
}

/// softplus and its derivative: the sigmoid, 1 above 20.
#[inline(always)]
pub(super) fn softplus_with_slope<S: Simd>(s: S, x: S::f32s) -> (S::f32s, S::f32s) {
    let (w, log1p) = log1p_exp_neg_abs(s, x);
    let one = s.splat_f32s(1.0);
    let upper = s.div_f32s(one, s.add_f32s(one, w));
    let negative = s.less_than_f32s(x, s.splat_f32s(0.0));
    let slope = s.select_f32s(negative, s.mul_f32s(w, upper), upper);
    let linear = s.greater_than_f32s(x, s.splat_f32s(SOFTPLUS_LINEAR));
    (softplus_from(s, x, log1p), s.select_f32s(linear, one, slope))
}
