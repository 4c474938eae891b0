//! Drawing the next token from logits, in f64 and with the same bits on every machine.

use crate::error::{CliError, Result};
use mamba_model::rng::SplitMix64;

/// How the next token is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    temperature: f64,
    top_k: Option<usize>,
    top_p: Option<f64>,
}

impl Sampling {
    /// Checks the settings: temperature finite and at least 0, `top_k` at least 1, `top_p` above 0 and at most 1.
    pub fn new(temperature: f64, top_k: Option<usize>, top_p: Option<f64>) -> Result<Self> {
        let bad = |flag, value: String, expected| Err(CliError::Flag { flag, value, expected });
        if !(temperature.is_finite() && temperature >= 0.0) {
            return bad("--temperature", temperature.to_string(), "finite and at least 0");
        }
        if top_k == Some(0) {
            return bad("--top-k", "0".to_owned(), "at least 1");
        }
        if let Some(p) = top_p.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
            return bad("--top-p", p.to_string(), "above 0 and at most 1");
        }
        Ok(Self { temperature, top_k, top_p })
    }
}

/// Draws tokens from logits.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    rng: SplitMix64,
    /// Candidates as (logit, then probability; id), the likeliest first.
    candidates: Vec<(f64, u32)>,
}

impl Sampler {
    /// A sampler whose draws follow from the seed.
    pub fn new(sampling: Sampling, seed: u64) -> Self {
        Self { sampling, rng: SplitMix64::new(seed, "sampling"), candidates: Vec::new() }
    }

    /// The next token, from the logits of the vocabulary (without padding rows). Among equal logits the lower id
    /// counts as likelier.
    ///
    /// # Errors
    /// [`CliError::Logit`] where a logit is NaN or infinite.
    pub fn next(&mut self, logits: &[f32]) -> Result<u32> {
        if let Some(token) = logits.iter().position(|l| !l.is_finite()) {
            return Err(CliError::Logit { token, value: logits[token] });
        }
        self.candidates.clear();
        self.candidates.extend(logits.iter().zip(0u32..).map(|(&l, id)| (f64::from(l), id)));
        if self.sampling.temperature == 0.0 {
            let best = |a: (f64, u32), b: &(f64, u32)| if b.0 > a.0 { *b } else { a };
            return Ok(self.candidates.iter().fold((f64::NEG_INFINITY, 0), best).1);
        }
        self.candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        self.candidates.truncate(self.sampling.top_k.unwrap_or(usize::MAX));
        self.normalise();
        if let Some(p) = self.sampling.top_p {
            self.keep_mass(p);
        }
        Ok(self.draw())
    }

    fn normalise(&mut self) {
        let Some(&(highest, _)) = self.candidates.first() else { return };
        let temperature = self.sampling.temperature;
        for c in &mut self.candidates {
            c.0 = libm::exp((c.0 - highest) / temperature);
        }
        let total: f64 = self.candidates.iter().map(|c| c.0).sum();
        self.candidates.iter_mut().for_each(|c| c.0 /= total);
    }

    /// Keeps the shortest run of the likeliest that reaches `p`.
    fn keep_mass(&mut self, p: f64) {
        let mut mass = 0.0;
        let enough = self.candidates.iter().position(|c| {
            mass += c.0;
            mass >= p
        });
        if let Some(last) = enough {
            self.candidates.truncate(last + 1);
        }
    }

    fn draw(&mut self) -> u32 {
        let total: f64 = self.candidates.iter().map(|c| c.0).sum();
        let mut left = self.rng.unit() * total;
        for &(probability, id) in &self.candidates {
            left -= probability;
            if left < 0.0 {
                return id;
            }
        }
        // Rounding can leave a crumb; it belongs to the last candidate.
        self.candidates.last().map_or(0, |c| c.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(temperature: f64, top_k: Option<usize>, top_p: Option<f64>) -> Sampler {
        Sampler::new(Sampling::new(temperature, top_k, top_p).unwrap(), 7)
    }

    fn seen(mut sampler: Sampler, logits: &[f32], draws: usize) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        for _ in 0..draws {
            counts[sampler.next(logits).unwrap() as usize] += 1;
        }
        counts
    }

    #[test]
    fn zero_temperature_takes_the_first_of_the_highest() {
        assert_eq!(sampler(0.0, None, None).next(&[1.0, 3.0, 3.0, -2.0]).unwrap(), 1);
        assert_eq!(sampler(0.0, None, None).next(&[-5.0]).unwrap(), 0);
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        // Probabilities 1/2, 1/4, 1/8, 1/8.
        let ln2 = std::f32::consts::LN_2;
        let logits = [3.0 * ln2, 2.0 * ln2, ln2, ln2];
        let n = 40_000;
        let counts = seen(sampler(1.0, None, None), &logits, n);
        for (count, p) in counts.iter().zip([0.5, 0.25, 0.125, 0.125]) {
            let share = *count as f64 / n as f64;
            // Four standard deviations of the widest are 0.01.
            assert!((share - p).abs() < 0.01, "{share} vs {p}");
        }
        // At temperature 1/2 the probabilities are squared: 16, 4, 1, 1 of 22.
        let counts = seen(sampler(0.5, None, None), &logits, n);
        assert!((counts[0] as f64 / n as f64 - 16.0 / 22.0).abs() < 0.01);
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail() {
        let logits = [0.0, 2.0, 1.0, 2.0];
        let counts = seen(sampler(1.0, Some(2), None), &logits, 1000);
        assert!(counts[0] == 0 && counts[2] == 0 && counts[1] > 0 && counts[3] > 0, "{counts:?}");
        // Probabilities 0.39, 0.39, 0.14, 0.05: 0.5 takes two, 0.3 one.
        let counts = seen(sampler(1.0, None, Some(0.5)), &logits, 1000);
        assert!(counts[0] == 0 && counts[2] == 0 && counts[3] > 0, "{counts:?}");
        assert_eq!(seen(sampler(1.0, None, Some(0.3)), &logits, 100), [0, 100, 0, 0]);
        assert_eq!(seen(sampler(5.0, Some(1), None), &logits, 100), [0, 100, 0, 0]);
    }

    #[test]
    fn the_same_seed_gives_the_same_draws() {
        let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin()).collect();
        let draws = |seed| {
            let mut s = Sampler::new(Sampling::new(0.9, Some(40), Some(0.95)).unwrap(), seed);
            (0..20).map(|_| s.next(&logits).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draws(3), draws(3));
        assert_ne!(draws(3), draws(4));
    }

    #[test]
    fn bad_settings_and_logits_are_refused() {
        for (t, k, p) in [
            (f64::NAN, None, None),
            (-1.0, None, None),
            (f64::INFINITY, None, None),
            (1.0, Some(0), None),
            (1.0, None, Some(0.0)),
            (1.0, None, Some(1.5)),
            (1.0, None, Some(f64::NAN)),
        ] {
            assert!(Sampling::new(t, k, p).is_err(), "{t} {k:?} {p:?}");
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = sampler(0.0, None, None).next(&[0.0, bad]).unwrap_err();
            assert!(matches!(error, CliError::Logit { token: 1, .. }), "{error}");
        }
    }
}
