//! Deciding that a step is not worth taking, and noticing when too many are not.

use serde::{Deserialize, Serialize};

use crate::error::OptimError;
use crate::tail::StepOutcome;

/// Whether a gradient norm is a spike: above the threshold, or NaN. (Written as "not below", because every
/// comparison with NaN is false.)
pub fn is_spike(norm: f64, threshold: f64) -> bool {
    !matches!(norm.partial_cmp(&threshold), Some(core::cmp::Ordering::Less | core::cmp::Ordering::Equal))
}

/// Counts skipped steps by reason, and ends a run that no longer learns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkipCounter {
    /// Steps skipped because their norm was above the fixed threshold.
    pub spikes: u64,
    /// Steps skipped because their norm was an outlier among those of the last steps.
    pub outliers: u64,
    /// Steps skipped because of a non-finite gradient.
    pub non_finite: u64,
    /// Steps skipped because the loss scale was too large.
    pub overflows: u64,
    /// Spikes, outliers and non-finite gradients since the last step that was taken. Overflows are left out: a scaler
    /// looking for its scale skips several steps in a row, and its floor bounds them.
    pub consecutive: u32,
    /// Largest allowed `consecutive`; `None` for no limit.
    pub limit: Option<u32>,
}

impl SkipCounter {
    /// Counters at zero.
    pub const fn new(limit: Option<u32>) -> Self {
        Self { spikes: 0, outliers: 0, non_finite: 0, overflows: 0, consecutive: 0, limit }
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
            StepOutcome::SkippedOutlier { .. } => {
                self.outliers = self.outliers.saturating_add(1);
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
    fn the_counter_stops_a_run_that_only_skips() {
        let mut c = SkipCounter::new(Some(2));
        let bad = StepOutcome::SkippedNonFinite { grad_norm: f64::NAN };
        let spike = StepOutcome::SkippedSpike { grad_norm: 9.0, threshold: 1.0 };
        let outlier = StepOutcome::SkippedOutlier { grad_norm: 9.0, threshold: 1.0 };
        let overflow = StepOutcome::SkippedOverflow { loss_scale: 4.0 };
        c.record(&bad).unwrap();
        c.record(&spike).unwrap();
        c.record(&stepped(1.0)).unwrap();
        c.record(&outlier).unwrap();
        c.record(&overflow).unwrap();
        c.record(&bad).unwrap();
        assert_eq!(c.record(&bad), Err(OptimError::TooManySkips { consecutive: 3, limit: 2 }));
        assert_eq!((c.spikes, c.outliers, c.non_finite, c.overflows), (1, 1, 3, 1));
        c.record(&stepped(1.0)).unwrap();
        assert_eq!(c.consecutive, 0);
    }
}
