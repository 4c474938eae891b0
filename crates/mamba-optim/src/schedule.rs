//! Learning-rate schedules: a pure function from the number of completed updates to a factor of the base rate.
//!
//! Everything is `f64` and uses only operations whose bits are the same on every machine (`libm`'s cosine, not
//! the platform's), so a resumed run and a run on another machine see the same rates.

use serde::{Deserialize, Serialize};

use crate::error::{OptimError, ensure};

/// How the rate falls in the last phase of [`ScheduleKind::Wsd`]; `x` runs from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DecayShape {
    /// `1 - x`.
    #[default]
    Linear,
    /// `1 - sqrt(x)`: a steep start and a long tail.
    OneMinusSqrt,
    /// `(1 + cos(pi x)) / 2`.
    Cosine,
}

/// The schedules. All counts are optimizer updates; factors multiply the base learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ScheduleKind {
    /// Always 1.
    Constant,
    /// `(step + 1) / warmup` until it reaches 1, then 1.
    LinearWarmup {
        /// Updates until the full rate; 0 means none.
        warmup: u64,
    },
    /// Linear warm-up, then half a cosine from 1 down to `min_factor`, which is reached at step `total`.
    Cosine {
        /// Updates until the full rate; 0 means none.
        warmup: u64,
        /// Step at which `min_factor` is reached; greater than `warmup`.
        total: u64,
        /// Final factor, in 0..=1.
        min_factor: f64,
    },
    /// Warm-up, stable, decay: linear warm-up, `stable` updates at 1, then `decay` updates down to `min_factor`.
    Wsd {
        /// Updates until the full rate; 0 means none.
        warmup: u64,
        /// Updates at the full rate.
        stable: u64,
        /// Updates of the decay; at least 1.
        decay: u64,
        /// Final factor, in 0..=1.
        min_factor: f64,
        /// Shape of the decay.
        shape: DecayShape,
    },
}

/// A checked [`ScheduleKind`].
///
/// ```
/// use mamba_optim::{Schedule, ScheduleKind};
/// let s = Schedule::new(ScheduleKind::Cosine { warmup: 10, total: 110, min_factor: 0.1 })?;
/// assert_eq!(s.factor(0), 0.1); // the first update already moves
/// assert_eq!(s.factor(10), 1.0);
/// assert_eq!(s.factor(110), 0.1);
/// # Ok::<(), mamba_optim::OptimError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ScheduleKind", into = "ScheduleKind")]
pub struct Schedule {
    kind: ScheduleKind,
}

impl Default for Schedule {
    fn default() -> Self {
        Self::constant()
    }
}

impl Schedule {
    /// The schedule that is always 1.
    pub const fn constant() -> Self {
        Self { kind: ScheduleKind::Constant }
    }

    /// Checks the counts and factors.
    ///
    /// # Errors
    /// [`OptimError::Setting`] for a factor outside 0..=1, an empty cosine or decay phase, or phases whose sum
    /// does not fit 64 bits.
    pub fn new(kind: ScheduleKind) -> Result<Self, OptimError> {
        match kind {
            ScheduleKind::Constant | ScheduleKind::LinearWarmup { .. } => {}
            ScheduleKind::Cosine { warmup, total, min_factor } => {
                ensure(total > warmup, "total", total as f64, "greater than `warmup`")?;
                check_factor(min_factor)?;
            }
            ScheduleKind::Wsd { warmup, stable, decay, min_factor, .. } => {
                ensure(decay > 0, "decay", decay as f64, "at least 1")?;
                let end = warmup.checked_add(stable).and_then(|s| s.checked_add(decay));
                ensure(end.is_some(), "stable", stable as f64, "small enough that all phases fit 64 bits")?;
                check_factor(min_factor)?;
            }
        }
        Ok(Self { kind })
    }

    /// The schedule's parameters.
    pub const fn kind(&self) -> ScheduleKind {
        self.kind
    }

    /// Factor of the base learning rate for the update that follows `step` completed ones (so the first update
    /// asks for `factor(0)`).
    pub fn factor(&self, step: u64) -> f64 {
        match self.kind {
            ScheduleKind::Constant => 1.0,
            ScheduleKind::LinearWarmup { warmup } => warm(step, warmup),
            ScheduleKind::Cosine { warmup, total, min_factor } => {
                if step < warmup {
                    return warm(step, warmup);
                }
                fall(progress(step - warmup, total - warmup), min_factor, DecayShape::Cosine)
            }
            ScheduleKind::Wsd { warmup, stable, decay, min_factor, shape } => {
                let start = warmup + stable;
                if step < start {
                    return warm(step, warmup);
                }
                fall(progress(step - start, decay), min_factor, shape)
            }
        }
    }
}

impl TryFrom<ScheduleKind> for Schedule {
    type Error = OptimError;

    fn try_from(kind: ScheduleKind) -> Result<Self, OptimError> {
        Self::new(kind)
    }
}

impl From<Schedule> for ScheduleKind {
    fn from(schedule: Schedule) -> Self {
        schedule.kind
    }
}

fn check_factor(factor: f64) -> Result<(), OptimError> {
    ensure((0.0..=1.0).contains(&factor), "min_factor", factor, "between 0 and 1")
}

fn warm(step: u64, warmup: u64) -> f64 {
    if step >= warmup { 1.0 } else { (step + 1) as f64 / warmup as f64 }
}

fn progress(done: u64, of: u64) -> f64 {
    if done >= of { 1.0 } else { done as f64 / of as f64 }
}

fn fall(x: f64, min_factor: f64, shape: DecayShape) -> f64 {
    // The end is returned as given, not as the rounded sum below.
    if x >= 1.0 {
        return min_factor;
    }
    let left = match shape {
        DecayShape::Linear => 1.0 - x,
        DecayShape::OneMinusSqrt => 1.0 - x.sqrt(),
        DecayShape::Cosine => 0.5 * (1.0 + libm::cos(core::f64::consts::PI * x)),
    };
    min_factor + (1.0 - min_factor) * left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cosine() -> Schedule {
        Schedule::new(ScheduleKind::Cosine { warmup: 4, total: 12, min_factor: 0.25 }).unwrap()
    }

    fn wsd(shape: DecayShape) -> Schedule {
        Schedule::new(ScheduleKind::Wsd { warmup: 2, stable: 3, decay: 4, min_factor: 0.0, shape }).unwrap()
    }

    #[test]
    fn constant_is_one_forever() {
        let s = Schedule::default();
        assert_eq!((s.factor(0), s.factor(u64::MAX)), (1.0, 1.0));
    }

    #[test]
    fn warmup_starts_above_zero_and_ends_at_one() {
        let s = Schedule::new(ScheduleKind::LinearWarmup { warmup: 4 }).unwrap();
        let seen: Vec<f64> = (0..6).map(|t| s.factor(t)).collect();
        assert_eq!(seen, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]);
        let none = Schedule::new(ScheduleKind::LinearWarmup { warmup: 0 }).unwrap();
        assert_eq!(none.factor(0), 1.0);
    }

    #[test]
    fn cosine_passes_its_hand_computed_points() {
        let s = cosine();
        assert_eq!(s.factor(3), 1.0);
        assert_eq!(s.factor(4), 1.0);
        // A quarter, half and three quarters down: cos(pi/4) = sqrt(1/2).
        let root = 0.5f64.sqrt();
        for (step, left) in [(6, 0.5 * (1.0 + root)), (8, 0.5), (10, 0.5 * (1.0 - root))] {
            let want = 0.25 + 0.75 * left;
            // Measured at most 6e-17.
            assert!((s.factor(step) - want).abs() < 5e-16, "{step}: {} vs {want}", s.factor(step));
        }
        assert_eq!(s.factor(12), 0.25);
        assert_eq!(s.factor(u64::MAX), 0.25);
    }

    #[test]
    fn wsd_has_three_phases() {
        let seen: Vec<f64> = (0..11).map(|t| wsd(DecayShape::Linear).factor(t)).collect();
        assert_eq!(seen, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]);
        assert_eq!(wsd(DecayShape::OneMinusSqrt).factor(6), 0.5); // 1 - sqrt(1/4)
        assert!((wsd(DecayShape::Cosine).factor(7) - 0.5).abs() < 1e-15);
    }

    #[test]
    fn bad_schedules_are_refused() {
        let bad = [
            ScheduleKind::Cosine { warmup: 5, total: 5, min_factor: 0.0 },
            ScheduleKind::Cosine { warmup: 0, total: 5, min_factor: f64::NAN },
            ScheduleKind::Cosine { warmup: 0, total: 5, min_factor: -0.1 },
            ScheduleKind::Wsd { warmup: 0, stable: 1, decay: 0, min_factor: 0.0, shape: DecayShape::Linear },
            ScheduleKind::Wsd {
                warmup: u64::MAX,
                stable: 1,
                decay: 1,
                min_factor: 0.0,
                shape: DecayShape::Linear,
            },
            ScheduleKind::Wsd { warmup: 0, stable: 1, decay: 1, min_factor: 1.5, shape: DecayShape::Linear },
        ];
        for kind in bad {
            assert!(matches!(Schedule::new(kind), Err(OptimError::Setting { .. })), "{kind:?}");
        }
    }

    #[test]
    fn serde_round_trips_and_refuses_what_new_refuses() {
        let text = serde_json::to_string(&cosine()).unwrap();
        assert_eq!(serde_json::from_str::<Schedule>(&text).unwrap(), cosine());
        let bad = r#"{"Cosine":{"warmup":9,"total":3,"min_factor":0.0}}"#;
        let err = serde_json::from_str::<Schedule>(bad).unwrap_err().to_string();
        assert!(err.contains("total"), "{err}");
    }
}
