//! Deciding that a step is not worth taking, and noticing when too many are not.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::error::{OptimError, ensure};
use crate::tail::StepOutcome;

/// Whether a gradient norm is a spike: above the threshold, or NaN. (Written as "not below", because every
/// comparison with NaN is false.)
pub fn is_spike(norm: f64, threshold: f64) -> bool {
    !matches!(norm.partial_cmp(&threshold), Some(core::cmp::Ordering::Less | core::cmp::Ordering::Equal))
}

/// Settings of a [`SpikeDetector`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpikeDetectorConfig {
    /// Norms of the last steps that are looked at, 2 to 65,536; default 128.
    pub window: usize,
    /// Norms needed before anything is called a spike, 2 to `window`; default 32.
    pub min_samples: usize,
    /// Standard deviations above the mean that make a spike, above 0; default 6.
    pub z_score: f64,
    /// Smallest standard deviation as a share of the mean, 0 or more, so that a flat history does not turn every
    /// wiggle into a spike; default 0.05.
    pub relative_floor: f64,
}

impl Default for SpikeDetectorConfig {
    fn default() -> Self {
        Self { window: 128, min_samples: 32, z_score: 6.0, relative_floor: 0.05 }
    }
}

impl SpikeDetectorConfig {
    const MAX_WINDOW: usize = 1 << 16;

    fn check(&self) -> Result<(), OptimError> {
        let window_ok = (2..=Self::MAX_WINDOW).contains(&self.window);
        ensure(window_ok, "window", self.window as f64, "between 2 and 65,536")?;
        let samples_ok = (2..=self.window).contains(&self.min_samples);
        ensure(samples_ok, "min_samples", self.min_samples as f64, "between 2 and `window`")?;
        ensure(
            self.z_score.is_finite() && self.z_score > 0.0,
            "z_score",
            self.z_score,
            "finite and above 0",
        )?;
        let floor_ok = self.relative_floor.is_finite() && self.relative_floor >= 0.0;
        ensure(floor_ok, "relative_floor", self.relative_floor, "finite and at least 0")
    }
}

/// Turns the norms of past steps into a skip threshold: mean plus `z_score` sample standard deviations of a
/// running window. It is recomputed from the window in order, oldest first, so its bits depend on nothing else.
///
/// Only norms of steps that were taken belong in it; [`observe`](Self::observe) takes an outcome and sees to
/// that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "DetectorParts", into = "DetectorParts")]
pub struct SpikeDetector {
    config: SpikeDetectorConfig,
    norms: VecDeque<f64>,
}

impl SpikeDetector {
    /// A detector without history.
    ///
    /// # Errors
    /// [`OptimError::Setting`] naming the field out of range.
    pub fn new(config: SpikeDetectorConfig) -> Result<Self, OptimError> {
        config.check()?;
        Ok(Self { config, norms: VecDeque::new() })
    }

    /// The settings.
    pub const fn config(&self) -> &SpikeDetectorConfig {
        &self.config
    }

    /// Norms in the window, oldest first.
    pub fn norms(&self) -> impl Iterator<Item = f64> + '_ {
        self.norms.iter().copied()
    }

    /// Threshold for the next step; `None` while there is too little history.
    pub fn threshold(&self) -> Option<f64> {
        if self.norms.len() < self.config.min_samples {
            return None;
        }
        let n = self.norms.len() as f64;
        let mean = self.norms.iter().sum::<f64>() / n;
        let variance = self.norms.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (n - 1.0);
        let deviation = variance.sqrt();
        let floor = self.config.relative_floor * mean;
        let deviation = if deviation < floor { floor } else { deviation };
        Some(mean + self.config.z_score * deviation)
    }

    /// Takes the norm of a step that was taken; every other outcome leaves the window as it is.
    pub fn observe(&mut self, outcome: &StepOutcome) {
        if let StepOutcome::Stepped { grad_norm, .. } = *outcome
            && grad_norm.is_finite()
        {
            if self.norms.len() == self.config.window {
                self.norms.pop_front();
            }
            self.norms.push_back(grad_norm);
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DetectorParts {
    config: SpikeDetectorConfig,
    norms: Vec<f64>,
}

impl From<SpikeDetector> for DetectorParts {
    fn from(detector: SpikeDetector) -> Self {
        Self { config: detector.config, norms: detector.norms.into() }
    }
}

impl TryFrom<DetectorParts> for SpikeDetector {
    type Error = OptimError;

    fn try_from(parts: DetectorParts) -> Result<Self, OptimError> {
        parts.config.check()?;
        let count = parts.norms.len();
        if count > parts.config.window {
            let expected = "at most `window` norms";
            return Err(OptimError::State { field: "norms", value: count as f64, expected });
        }
        if let Some(&value) = parts.norms.iter().find(|n| !(n.is_finite() && **n >= 0.0)) {
            return Err(OptimError::State { field: "norms", value, expected: "finite and at least 0" });
        }
        Ok(Self { config: parts.config, norms: parts.norms.into() })
    }
}

/// Counts skipped steps by reason, and ends a run that no longer learns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkipCounter {
    /// Steps skipped because of a spike.
    pub spikes: u64,
    /// Steps skipped because of a non-finite gradient.
    pub non_finite: u64,
    /// Steps skipped because the loss scale was too large.
    pub overflows: u64,
    /// Spikes and non-finite gradients since the last step that was taken. Overflows are left out: a scaler
    /// looking for its scale skips several steps in a row, and its floor bounds them.
    pub consecutive: u32,
    /// Largest allowed `consecutive`; `None` for no limit.
    pub limit: Option<u32>,
}

impl SkipCounter {
    /// Counters at zero.
    pub const fn new(limit: Option<u32>) -> Self {
        Self { spikes: 0, non_finite: 0, overflows: 0, consecutive: 0, limit }
    }

    /// Counts an outcome.
    ///
    /// # Errors
    /// [`OptimError::TooManySkips`] once more than `limit` steps in a row were skipped; the skip is counted all
    /// the same.
    pub fn record(&mut self, outcome: &StepOutcome) -> Result<(), OptimError> {
        match outcome {
            StepOutcome::Stepped { .. } => self.consecutive = 0,
            StepOutcome::SkippedOverflow { .. } => self.overflows = self.overflows.saturating_add(1),
            StepOutcome::SkippedSpike { .. } => {
                self.spikes = self.spikes.saturating_add(1);
                self.consecutive = self.consecutive.saturating_add(1);
            }
            StepOutcome::SkippedNonFinite { .. } => {
                self.non_finite = self.non_finite.saturating_add(1);
                self.consecutive = self.consecutive.saturating_add(1);
            }
        }
        match self.limit {
            Some(limit) if self.consecutive > limit && !outcome.stepped() => {
                Err(OptimError::TooManySkips { consecutive: self.consecutive, limit })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stepped(grad_norm: f64) -> StepOutcome {
        StepOutcome::Stepped { grad_norm, clip: 1.0 }
    }

    #[test]
    fn nan_is_a_spike_and_the_threshold_itself_is_not() {
        assert!(!is_spike(1.0, 1.0));
        assert!(!is_spike(0.0, 1.0));
        assert!(is_spike(1.0 + f64::EPSILON, 1.0));
        assert!(is_spike(f64::NAN, 1.0));
        assert!(is_spike(f64::INFINITY, f64::MAX));
        assert!(!is_spike(f64::MAX, f64::MAX));
    }

    #[test]
    fn the_threshold_is_mean_plus_z_deviations_of_the_window() {
        let config = SpikeDetectorConfig { window: 4, min_samples: 3, z_score: 2.0, relative_floor: 0.0 };
        let mut d = SpikeDetector::new(config).unwrap();
        d.observe(&stepped(100.0));
        d.observe(&stepped(2.0));
        assert_eq!(d.threshold(), None);
        for norm in [4.0, 4.0, 6.0] {
            d.observe(&stepped(norm));
        }
        // Window 2, 4, 4, 6: mean 4, sample variance 8/3.
        let want = 4.0 + 2.0 * (8.0f64 / 3.0).sqrt();
        assert_eq!(d.threshold(), Some(want));
    }

    #[test]
    fn skipped_steps_stay_out_of_the_window() {
        let mut d = SpikeDetector::new(SpikeDetectorConfig::default()).unwrap();
        d.observe(&StepOutcome::SkippedSpike { grad_norm: 1e9, threshold: 1.0 });
        d.observe(&StepOutcome::SkippedNonFinite { grad_norm: f64::NAN });
        d.observe(&StepOutcome::SkippedOverflow { loss_scale: 2.0 });
        d.observe(&stepped(f64::INFINITY));
        assert_eq!(d.norms().count(), 0);
    }

    #[test]
    fn a_flat_history_leaves_room() {
        let config =
            SpikeDetectorConfig { window: 8, min_samples: 2, relative_floor: 0.5, ..Default::default() };
        let mut d = SpikeDetector::new(config).unwrap();
        d.observe(&stepped(2.0));
        d.observe(&stepped(2.0));
        assert_eq!(d.threshold(), Some(2.0 + 6.0));
    }

    #[test]
    fn detector_state_round_trips_bit_for_bit_and_is_checked() {
        let mut d = SpikeDetector::new(SpikeDetectorConfig { min_samples: 2, ..Default::default() }).unwrap();
        for i in 0..200 {
            d.observe(&stepped(1.0 + f64::from(i).sin() / 3.0));
        }
        let text = serde_json::to_string(&d).unwrap();
        let back: SpikeDetector = serde_json::from_str(&text).unwrap();
        assert_eq!(back, d);
        assert_eq!(back.threshold().unwrap().to_bits(), d.threshold().unwrap().to_bits());
        let bad =
            r#"{"config":{"window":4,"min_samples":2,"z_score":6.0,"relative_floor":0.0},"norms":[-1.0]}"#;
        assert!(serde_json::from_str::<SpikeDetector>(bad).unwrap_err().to_string().contains("norms"));
        for config in [
            SpikeDetectorConfig { window: 1, ..Default::default() },
            SpikeDetectorConfig { window: 1 << 17, ..Default::default() },
            SpikeDetectorConfig { min_samples: 129, ..Default::default() },
            SpikeDetectorConfig { z_score: f64::NAN, ..Default::default() },
            SpikeDetectorConfig { relative_floor: -0.1, ..Default::default() },
        ] {
            assert!(matches!(SpikeDetector::new(config), Err(OptimError::Setting { .. })), "{config:?}");
        }
    }

    #[test]
    fn the_counter_stops_a_run_that_only_skips() {
        let mut c = SkipCounter::new(Some(2));
        let bad = StepOutcome::SkippedNonFinite { grad_norm: f64::NAN };
        let spike = StepOutcome::SkippedSpike { grad_norm: 9.0, threshold: 1.0 };
        let overflow = StepOutcome::SkippedOverflow { loss_scale: 4.0 };
        c.record(&bad).unwrap();
        c.record(&spike).unwrap();
        c.record(&stepped(1.0)).unwrap();
        c.record(&spike).unwrap();
        c.record(&overflow).unwrap();
        c.record(&bad).unwrap();
        assert_eq!(c.record(&bad), Err(OptimError::TooManySkips { consecutive: 3, limit: 2 }));
        assert_eq!((c.spikes, c.non_finite, c.overflows), (2, 3, 1));
        c.record(&stepped(1.0)).unwrap();
        assert_eq!(c.consecutive, 0);
    }
}
