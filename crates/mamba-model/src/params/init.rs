use crate::rng::SplitMix64;

/// How a tensor starts. All draws are made in f64 with portable arithmetic and rounded once to f32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// Uniform in ±bound.
    Uniform {
        /// Half width, usually 1/sqrt(fan_in).
        bound: f64,
    },
    /// Normal with mean 0.
    Normal {
        /// Standard deviation.
        std: f64,
    },
    /// Inverse softplus of a log-uniform Δ in [1e-3, 1e-1], floored at 1e-4.
    DtBias,
    /// ln(1..=d_state) in every row, so that A = -(1..=d_state).
    ALog {
        /// Columns of the tensor.
        d_state: usize,
    },
    /// All ones.
    Ones,
    /// All zeros.
    Zeros,
}

impl Init {
    /// Fills `out` from the stream of (seed, tensor name).
    pub fn fill(self, seed: u64, name: &str, out: &mut [f32]) {
        let mut rng = SplitMix64::new(seed, name);
        for (i, x) in out.iter_mut().enumerate() {
            *x = match self {
                Init::Uniform { bound } => rng.symmetric(bound) as f32,
                Init::Normal { std } => (rng.normal() * std) as f32,
                Init::DtBias => dt_bias(rng.unit()) as f32,
                Init::ALog { d_state } => libm::log((i % d_state + 1) as f64) as f32,
                Init::Ones => 1.0,
                Init::Zeros => 0.0,
            };
        }
    }
}

fn dt_bias(unit: f64) -> f64 {
    let (lo, hi) = (libm::log(1e-3), libm::log(1e-1));
    let dt = libm::exp(lo + unit * (hi - lo)).max(1e-4);
    dt + libm::log(-libm::expm1(-dt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dt_bias_inverts_softplus() {
        for unit in [0.0, 0.25, 0.5, 0.999] {
            let dt = libm::log1p(libm::exp(dt_bias(unit)));
            let want = 1e-3 * libm::pow(100.0, unit);
            assert!((dt - want).abs() < 1e-12, "unit {unit}: {dt} != {want}");
        }
    }

    #[test]
    fn draws_are_portable_bits() {
        let mut x = [0.0f32; 3];
        Init::Uniform { bound: 0.5 }.fill(7, "layers.0.in_proj", &mut x);
        let mut y = [0.0f32; 3];
        Init::Uniform { bound: 0.5 }.fill(7, "layers.1.in_proj", &mut y);
        assert!(x.iter().all(|v| v.abs() <= 0.5) && x != y);
        let mut a = [0.0f32; 4];
        Init::ALog { d_state: 2 }.fill(0, "", &mut a);
        assert_eq!(a, [0.0, std::f32::consts::LN_2, 0.0, std::f32::consts::LN_2]);
    }
}
