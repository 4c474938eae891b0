//! The gradient norms of past steps, and what counts as an outlier among them.
//!
//! The threshold is recomputed from the window for every step, in an order that the number of norms alone fixes: norm
//! `i`, oldest first, goes to lane `i mod` [`LANES`], a lane adds in order, the lanes are folded by halves. A warp of a
//! GPU does the same, so equal norms give equal decisions there.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::error::{OptimError, ensure};
use crate::grads::{LANES, fold_by_halves};

/// Settings of a [`NormWindow`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NormWindowConfig {
    /// Norms of the last steps that are looked at, 2 to 65,536; default 128.
    pub window: usize,
    /// Norms needed before anything is an outlier, 2 to `window`; default 16.
    pub min_samples: usize,
    /// Smallest standard deviation as a share of the mean, 0 or more, so that a flat history does not turn every
    /// wiggle into an outlier; default 0.05.
    pub relative_floor: f64,
}

impl Default for NormWindowConfig {
    fn default() -> Self {
        Self { window: 128, min_samples: 16, relative_floor: 0.05 }
    }
}

impl NormWindowConfig {
    const MAX_WINDOW: usize = 1 << 16;

    fn check(&self) -> Result<(), OptimError> {
        let window_ok = (2..=Self::MAX_WINDOW).contains(&self.window);
        ensure(window_ok, "window", self.window as f64, "between 2 and 65,536")?;
        let samples_ok = (2..=self.window).contains(&self.min_samples);
        ensure(samples_ok, "min_samples", self.min_samples as f64, "between 2 and `window`")?;
        let floor_ok = self.relative_floor.is_finite() && self.relative_floor >= 0.0;
        ensure(floor_ok, "relative_floor", self.relative_floor, "finite and at least 0")
    }

    /// Checks norms for [`NormWindow::restore`].
    ///
    /// # Errors
    /// [`OptimError::State`] for too many of them, or one that no finite gradient has.
    pub fn check_norms(&self, norms: &[f64]) -> Result<(), OptimError> {
        if norms.len() > self.window {
            let (value, expected) = (norms.len() as f64, "at most `window` norms");
            return Err(OptimError::State { field: "norms", value, expected });
        }
        match norms.iter().find(|n| !(n.is_finite() && **n >= 0.0)) {
            Some(&value) => {
                Err(OptimError::State { field: "norms", value, expected: "finite and at least 0" })
            }
            None => Ok(()),
        }
    }
}

/// Gradient norms of the last steps that were taken; never one that is not finite.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "WindowParts", into = "WindowParts")]
pub struct NormWindow {
    config: NormWindowConfig,
    norms: VecDeque<f64>,
}

impl NormWindow {
    /// An empty window.
    ///
    /// # Errors
    /// [`OptimError::Setting`] naming the field out of range.
    pub fn new(config: NormWindowConfig) -> Result<Self, OptimError> {
        config.check()?;
        Ok(Self { config, norms: VecDeque::new() })
    }

    /// The settings.
    pub const fn config(&self) -> &NormWindowConfig {
        &self.config
    }

    /// The norms, oldest first.
    pub fn norms(&self) -> impl Iterator<Item = f64> + '_ {
        self.norms.iter().copied()
    }

    /// Replaces the norms; oldest first.
    ///
    /// # Errors
    /// Those of [`NormWindowConfig::check_norms`]; nothing changes then.
    pub fn restore(&mut self, norms: &[f64]) -> Result<(), OptimError> {
        self.config.check_norms(norms)?;
        self.norms = norms.iter().copied().collect();
        Ok(())
    }

    /// The norm above which a step is an outlier: mean plus `z_score` sample standard deviations. `None` while there is
    /// too little history, where `z_score` is not finite, and where the history is all zeros.
    pub fn threshold(&self, z_score: f64) -> Option<f64> {
        if !z_score.is_finite() || self.norms.len() < self.config.min_samples {
            return None;
        }
        let n = self.norms.len() as f64;
        let mean = self.fold(|x| x) / n;
        let variance = self.fold(|x| (x - mean) * (x - mean)) / (n - 1.0);
        let deviation = variance.sqrt();
        let floor = self.config.relative_floor * mean;
        let deviation = if deviation < floor { floor } else { deviation };
        Some(mean + z_score * deviation).filter(|t| *t > 0.0)
    }

    /// Takes the norm of a step that was taken; one that is not finite is left out.
    pub(crate) fn push(&mut self, norm: f64) {
        if !norm.is_finite() {
            return;
        }
        if self.norms.len() == self.config.window {
            self.norms.pop_front();
        }
        self.norms.push_back(norm);
    }

    fn fold(&self, of: impl Fn(f64) -> f64) -> f64 {
        let mut lanes = [0.0; LANES];
        for (i, &norm) in self.norms.iter().enumerate() {
            lanes[i % LANES] += of(norm);
        }
        fold_by_halves(&mut lanes)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WindowParts {
    config: NormWindowConfig,
    norms: Vec<f64>,
}

impl From<NormWindow> for WindowParts {
    fn from(window: NormWindow) -> Self {
        Self { config: window.config, norms: window.norms.into() }
    }
}

impl TryFrom<WindowParts> for NormWindow {
    type Error = OptimError;

    fn try_from(parts: WindowParts) -> Result<Self, OptimError> {
        let mut window = Self::new(parts.config)?;
        window.restore(&parts.norms)?;
        Ok(window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(window: usize, min_samples: usize, relative_floor: f64) -> NormWindow {
        NormWindow::new(NormWindowConfig { window, min_samples, relative_floor }).unwrap()
    }

    fn filled(mut window: NormWindow, norms: &[f64]) -> NormWindow {
        norms.iter().for_each(|&n| window.push(n));
        window
    }

    #[test]
    fn the_threshold_is_mean_plus_z_deviations_of_the_last_norms() {
        let mut w = filled(window(4, 3, 0.0), &[100.0, 2.0]);
        assert_eq!(w.threshold(2.0), None);
        for norm in [4.0, 4.0, 6.0] {
            w.push(norm);
        }
        // The 100 is gone. 2, 4, 4, 6: mean 4, sample variance 8/3.
        assert_eq!(w.norms().collect::<Vec<_>>(), [2.0, 4.0, 4.0, 6.0]);
        assert_eq!(w.threshold(2.0), Some(4.0 + 2.0 * (8.0f64 / 3.0).sqrt()));
        assert_eq!(w.threshold(0.5), Some(4.0 + 0.5 * (8.0f64 / 3.0).sqrt()));
        assert_eq!((w.threshold(f64::INFINITY), w.threshold(f64::NAN)), (None, None));
    }

    #[test]
    fn more_norms_than_lanes_are_added_lane_by_lane() {
        let norms: Vec<f64> = (0..100).map(|i| 1.0 + f64::from(i * 37 % 101) / 7.0).collect();
        let w = filled(window(75, 2, 0.0), &norms);
        let last = &norms[25..];
        let sum = |of: &dyn Fn(f64) -> f64| {
            let mut lanes: Vec<f64> =
                (0..32).map(|j| last.iter().skip(j).step_by(32).fold(0.0, |a, x| a + of(*x))).collect();
            for half in [16, 8, 4, 2, 1] {
                (0..half).for_each(|j| lanes[j] += lanes[j + half]);
            }
            lanes[0]
        };
        let mean = sum(&|x| x) / 75.0;
        let deviation = (sum(&|x| (x - mean) * (x - mean)) / 74.0).sqrt();
        assert_eq!(w.threshold(3.0).unwrap().to_bits(), (mean + 3.0 * deviation).to_bits());
        // Where the window began in its buffer does not show.
        let mut fresh = window(75, 2, 0.0);
        fresh.restore(last).unwrap();
        assert_eq!(fresh, w);
        assert_eq!(fresh.threshold(3.0).map(f64::to_bits), w.threshold(3.0).map(f64::to_bits));
    }

    #[test]
    fn norms_that_are_not_finite_stay_outside() {
        let w = filled(window(4, 2, 0.0), &[f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
        assert_eq!(w.norms().count(), 0);
        // Sums that overflow call nothing an outlier.
        let w = filled(window(4, 2, 0.0), &[f64::MAX, f64::MAX, f64::MAX / 2.0]);
        assert_eq!(w.threshold(1.0), Some(f64::INFINITY));
    }

    #[test]
    fn flat_and_empty_histories_leave_room() {
        assert_eq!(filled(window(8, 2, 0.5), &[2.0, 2.0]).threshold(6.0), Some(2.0 + 6.0));
        assert_eq!(filled(window(8, 2, 0.5), &[0.0, 0.0]).threshold(6.0), None);
        let default = NormWindow::default();
        assert_eq!(filled(default.clone(), &[1.0; 15]).threshold(4.0), None);
        assert_eq!(filled(default, &[1.0; 16]).threshold(4.0), Some(1.0 + 4.0 * 0.05));
    }

    #[test]
    fn the_window_round_trips_bit_for_bit_and_is_checked() {
        let norms: Vec<f64> = (0..200).map(|i| 1.0 + f64::from(i).sin() / 3.0).collect();
        let w = filled(NormWindow::default(), &norms);
        let text = serde_json::to_string(&w).unwrap();
        let mut back: NormWindow = serde_json::from_str(&text).unwrap();
        assert_eq!(back, w);
        assert_eq!(back.threshold(6.0).unwrap().to_bits(), w.threshold(6.0).unwrap().to_bits());
        let bad = r#"{"config":{"window":4,"min_samples":2,"relative_floor":0.0},"norms":[-1.0]}"#;
        assert!(serde_json::from_str::<NormWindow>(bad).unwrap_err().to_string().contains("norms"));
        for norms in [vec![1.0; 129], vec![f64::NAN], vec![1.0, f64::INFINITY]] {
            assert!(matches!(back.restore(&norms), Err(OptimError::State { field: "norms", .. })));
        }
        assert_eq!(back, w);
        for config in [
            NormWindowConfig { window: 1, ..Default::default() },
            NormWindowConfig { window: 1 << 17, ..Default::default() },
            NormWindowConfig { min_samples: 129, ..Default::default() },
            NormWindowConfig { relative_floor: -0.1, ..Default::default() },
            NormWindowConfig { relative_floor: f64::NAN, ..Default::default() },
        ] {
            assert!(matches!(NormWindow::new(config), Err(OptimError::Setting { .. })), "{config:?}");
        }
    }
}
