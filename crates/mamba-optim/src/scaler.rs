//! Dynamic loss scaling with the semantics of PyTorch's `GradScaler`, plus an upper and a lower bound.
//!
//! The loss is multiplied by the scale before backward. A step whose *scaled* gradients hold an Inf or NaN is
//! skipped and the scale backs off; after `growth_interval` clean steps in a row the scale grows.
//!
//! A disabled scaler is a null object: scale 1, never an overflow, updates do nothing. So there is one training
//! step for all precisions.

use serde::{Deserialize, Serialize};

use crate::error::{OptimError, ensure};

/// Settings of an enabled scaler.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScalerConfig {
    /// Scale of the first step; default 65,536.
    pub init_scale: f32,
    /// Factor of a growth, above 1; default 2.
    pub growth_factor: f64,
    /// Factor of a back-off, between 0 and 1; default 0.5.
    pub backoff_factor: f64,
    /// Clean steps in a row until a growth, at least 1; default 2,000.
    pub growth_interval: u32,
    /// Largest scale, `None` for no bound but finiteness; default 2^24.
    pub max_scale: Option<f32>,
    /// Smallest scale, `None` for no bound but a finite inverse; default 1.
    pub min_scale: Option<f32>,
}

impl Default for ScalerConfig {
    fn default() -> Self {
        Self {
            init_scale: 65_536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2_000,
            max_scale: Some(16_777_216.0),
            min_scale: Some(1.0),
        }
    }
}

impl ScalerConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// [`OptimError::Setting`] naming the first field out of range.
    pub fn check(&self) -> Result<(), OptimError> {
        const POSITIVE: &str = "positive and finite, with a finite inverse";
        let growth_ok = self.growth_factor.is_finite() && self.growth_factor > 1.0;
        ensure(growth_ok, "growth_factor", self.growth_factor, "finite and above 1")?;
        let backoff_ok = self.backoff_factor > 0.0 && self.backoff_factor < 1.0;
        ensure(backoff_ok, "backoff_factor", self.backoff_factor, "between 0 and 1, both excluded")?;
        ensure(self.growth_interval > 0, "growth_interval", 0.0, "at least 1")?;
        if let Some(max) = self.max_scale {
            ensure(usable(max), "max_scale", f64::from(max), POSITIVE)?;
        }
        if let Some(min) = self.min_scale {
            ensure(usable(min), "min_scale", f64::from(min), POSITIVE)?;
        }
        ensure(usable(self.init_scale), "init_scale", f64::from(self.init_scale), POSITIVE)?;
        let expected = "between `min_scale` and `max_scale`";
        ensure(self.inside(self.init_scale), "init_scale", f64::from(self.init_scale), expected)
    }

    fn inside(&self, scale: f32) -> bool {
        self.min_scale.is_none_or(|min| scale >= min) && self.max_scale.is_none_or(|max| scale <= max)
    }
}

/// What a resumed run needs of an enabled scaler.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScalerState {
    /// Current scale.
    pub scale: f32,
    /// Clean steps since the last growth or overflow.
    pub growth_tracker: u32,
}

/// The loss scaler; see the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct LossScaler {
    active: Option<Active>,
}

#[derive(Clone, Debug, PartialEq)]
struct Active {
    config: ScalerConfig,
    state: ScalerState,
}

impl LossScaler {
    /// An enabled scaler at its initial scale.
    ///
    /// # Errors
    /// [`OptimError::Setting`] from [`ScalerConfig::check`].
    pub fn new(config: ScalerConfig) -> Result<Self, OptimError> {
        config.check()?;
        let state = ScalerState { scale: config.init_scale, growth_tracker: 0 };
        Ok(Self { active: Some(Active { config, state }) })
    }

    /// The null object: scale 1, never an overflow.
    pub const fn disabled() -> Self {
        Self { active: None }
    }

    /// Whether this scaler scales.
    pub const fn is_enabled(&self) -> bool {
        self.active.is_some()
    }

    /// Settings, `None` where disabled.
    pub fn config(&self) -> Option<&ScalerConfig> {
        self.active.as_ref().map(|a| &a.config)
    }

    /// Factor for the loss (or for the upstream gradient); 1 where disabled.
    pub fn scale(&self) -> f32 {
        self.active.as_ref().map_or(1.0, |a| a.state.scale)
    }

    /// Factor that undoes the scale: the reciprocal in `f64`, rounded once to `f32`; 1 where disabled.
    pub fn inv_scale(&self) -> f32 {
        inverse(self.scale())
    }

    /// Ends a step. `found_inf`: whether the scaled gradients held an Inf or NaN, in which case the caller
    /// skipped the optimizer step.
    ///
    /// # Errors
    /// [`OptimError::ScaleAtFloor`] for an overflow when the scale cannot go lower; nothing changes then. A
    /// clean update and an update of a disabled scaler never fail.
    pub fn update(&mut self, found_inf: bool) -> Result<(), OptimError> {
        let Some(active) = &mut self.active else { return Ok(()) };
        active.state = if found_inf { active.backed_off()? } else { active.grown() };
        Ok(())
    }

    /// Whether an overflow could be answered by a lower scale.
    ///
    /// # Errors
    /// The error that [`update(true)`](Self::update) would return.
    pub fn check_backoff(&self) -> Result<(), OptimError> {
        self.active.as_ref().map_or(Ok(()), |a| a.backed_off().map(|_| ()))
    }

    /// State to save, `None` where disabled.
    pub fn state(&self) -> Option<ScalerState> {
        self.active.as_ref().map(|a| a.state)
    }

    /// Puts a saved state back; the growth counter goes on where it was.
    ///
    /// # Errors
    /// [`OptimError::ScalerKind`] where one side is disabled, [`OptimError::State`] for a scale out of bounds or
    /// a counter past the interval. Nothing changes then.
    pub fn restore(&mut self, saved: Option<ScalerState>) -> Result<(), OptimError> {
        let (active, saved) = match (&mut self.active, saved) {
            (None, None) => return Ok(()),
            (Some(active), Some(saved)) => (active, saved),
            (None, Some(_)) => {
                return Err(OptimError::ScalerKind { saved: "enabled", current: "disabled" });
            }
            (Some(_), None) => {
                return Err(OptimError::ScalerKind { saved: "disabled", current: "enabled" });
            }
        };
        if !usable(saved.scale) || !active.config.inside(saved.scale) {
            return Err(OptimError::State {
                field: "scale",
                value: f64::from(saved.scale),
                expected: "finite, positive and between this scaler's bounds",
            });
        }
        if saved.growth_tracker >= active.config.growth_interval {
            return Err(OptimError::State {
                field: "growth_tracker",
                value: f64::from(saved.growth_tracker),
                expected: "below this scaler's growth interval",
            });
        }
        active.state = saved;
        Ok(())
    }
}

impl Active {
    fn backed_off(&self) -> Result<ScalerState, OptimError> {
        let ScalerState { scale, .. } = self.state;
        let lower = (f64::from(scale) * self.config.backoff_factor) as f32;
        let lower = match self.config.min_scale {
            Some(min) if lower < min => min,
            _ => lower,
        };
        if lower < scale && usable(lower) {
            Ok(ScalerState { scale: lower, growth_tracker: 0 })
        } else {
            Err(OptimError::ScaleAtFloor { scale, floor: self.config.min_scale.unwrap_or(scale) })
        }
    }

    fn grown(&self) -> ScalerState {
        let ScalerState { scale, growth_tracker } = self.state;
        let clean = growth_tracker.saturating_add(1);
        if clean < self.config.growth_interval {
            return ScalerState { scale, growth_tracker: clean };
        }
        let higher = (f64::from(scale) * self.config.growth_factor) as f32;
        let higher = match self.config.max_scale {
            Some(max) if higher > max => max,
            _ => higher,
        };
        ScalerState { scale: if usable(higher) { higher } else { scale }, growth_tracker: 0 }
    }
}

fn inverse(scale: f32) -> f32 {
    (1.0 / f64::from(scale)) as f32
}

fn usable(scale: f32) -> bool {
    scale.is_finite() && scale > 0.0 && inverse(scale).is_finite()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_stops_at_the_cap_and_backoff_at_the_floor() {
        let config = ScalerConfig { growth_interval: 1, init_scale: 6_000_000.0, ..Default::default() };
        let mut s = LossScaler::new(config).unwrap();
        s.update(false).unwrap();
        assert_eq!(s.scale(), 12_000_000.0);
        s.update(false).unwrap();
        assert_eq!(s.scale(), 16_777_216.0);
        s.update(false).unwrap();
        assert_eq!(s.scale(), 16_777_216.0);

        let mut s = LossScaler::new(ScalerConfig { init_scale: 3.0, ..Default::default() }).unwrap();
        s.update(true).unwrap();
        assert_eq!(s.scale(), 1.5);
        s.update(true).unwrap();
        assert_eq!(s.scale(), 1.0);
        s.update(false).unwrap();
        let before = s.clone();
        assert_eq!(s.check_backoff(), Err(OptimError::ScaleAtFloor { scale: 1.0, floor: 1.0 }));
        assert_eq!(s.update(true), Err(OptimError::ScaleAtFloor { scale: 1.0, floor: 1.0 }));
        assert_eq!(s, before);
    }

    #[test]
    fn without_a_floor_the_scale_stops_before_its_inverse_overflows() {
        let config = ScalerConfig { min_scale: None, init_scale: 1.0, ..Default::default() };
        let mut s = LossScaler::new(config).unwrap();
        let mut halvings = 0;
        while s.update(true).is_ok() {
            halvings += 1;
            assert!(s.inv_scale().is_finite());
        }
        // 2^127 is the largest power of two in f32.
        assert_eq!(halvings, 127);
    }

    #[test]
    fn restoring_mid_growth_continues_the_count() {
        let config = ScalerConfig { growth_interval: 7, ..Default::default() };
        let mut whole = LossScaler::new(config).unwrap();
        let mut first = LossScaler::new(config).unwrap();
        for _ in 0..5 {
            whole.update(false).unwrap();
            first.update(false).unwrap();
        }
        let saved = serde_json::to_string(&first.state()).unwrap();
        let mut second = LossScaler::new(config).unwrap();
        second.restore(serde_json::from_str(&saved).unwrap()).unwrap();
        for s in [&mut whole, &mut second] {
            s.update(false).unwrap();
            assert_eq!(s.scale(), 65_536.0);
            s.update(false).unwrap();
            assert_eq!(s.scale(), 131_072.0);
        }
        assert_eq!(whole, second);
    }

    #[test]
    fn a_disabled_scaler_does_nothing() {
        let mut s = LossScaler::disabled();
        s.update(true).unwrap();
        s.update(false).unwrap();
        assert_eq!((s.scale(), s.inv_scale(), s.state()), (1.0, 1.0, None));
        s.restore(None).unwrap();
        let saved = Some(ScalerState { scale: 2.0, growth_tracker: 0 });
        assert_eq!(s.restore(saved), Err(OptimError::ScalerKind { saved: "enabled", current: "disabled" }));
        let mut on = LossScaler::new(ScalerConfig::default()).unwrap();
        assert_eq!(on.restore(None), Err(OptimError::ScalerKind { saved: "disabled", current: "enabled" }));
    }

    #[test]
    fn bad_settings_and_states_are_refused() {
        let good = ScalerConfig::default();
        let bad = [
            ScalerConfig { init_scale: 0.0, ..good },
            ScalerConfig { init_scale: f32::NAN, ..good },
            ScalerConfig { init_scale: 0.5, ..good },
            ScalerConfig { init_scale: 1e38, ..good },
            ScalerConfig { growth_factor: 1.0, ..good },
            ScalerConfig { growth_factor: f64::INFINITY, ..good },
            ScalerConfig { backoff_factor: 1.0, ..good },
            ScalerConfig { backoff_factor: f64::NAN, ..good },
            ScalerConfig { growth_interval: 0, ..good },
            ScalerConfig { min_scale: Some(-1.0), ..good },
            ScalerConfig { max_scale: Some(f32::INFINITY), ..good },
        ];
        for config in bad {
            assert!(matches!(LossScaler::new(config), Err(OptimError::Setting { .. })), "{config:?}");
        }
        let mut s = LossScaler::new(good).unwrap();
        let before = s.clone();
        for (scale, growth_tracker) in [(f32::NAN, 0), (0.5, 0), (1e9, 0), (2.0, 2_000)] {
            let saved = Some(ScalerState { scale, growth_tracker });
            assert!(matches!(s.restore(saved), Err(OptimError::State { .. })), "{saved:?}");
        }
        assert_eq!(s, before);
    }
}
