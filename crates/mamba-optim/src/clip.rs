//! Clipping by norm.

use crate::error::{OptimError, ensure};
use crate::grads::{control_sum_of_squares, scale_control};
use crate::groups::ControlSpans;
use crate::scalars::StepScalars;

/// Guards the division where the norm is tiny; the constant of PyTorch's `clip_grad_norm_`.
pub const CLIP_EPS: f64 = 1e-6;

/// Factor for the gradient: `max_norm / (norm + 1e-6)` if that is below 1, else exactly 1.
///
/// # Errors
/// [`OptimError::Setting`] for a threshold that is not finite and positive, [`OptimError::NonFiniteNorm`] where
/// there is no coefficient.
pub fn clip_coefficient(norm: f64, max_norm: f64) -> Result<f32, OptimError> {
    check_threshold("max_norm", max_norm)?;
    if norm.is_finite() { Ok(coefficient(norm, max_norm)) } else { Err(OptimError::NonFiniteNorm { norm }) }
}

/// The control clip: scales the elements under `control` in place, so that the norm over them (times
/// `inv_scale`) is at most `control_clip_max`. Returns the norm before the clip. A norm that is not finite
/// leaves the gradient as it is.
///
/// # Errors
/// [`OptimError::SpanRange`] for spans past the end of `grads`; nothing is written then.
pub fn clip_control_spans(
    grads: &mut [f32],
    control: &ControlSpans,
    scalars: &StepScalars,
) -> Result<f64, OptimError> {
    control.check_inside(grads.len())?;
    let norm = control_sum_of_squares(grads, control, scalars.inv_scale).sqrt();
    let factor = coefficient(norm, scalars.control_clip_max);
    if factor != 1.0 {
        scale_control(grads, control, factor);
    }
    Ok(norm)
}

/// [`clip_coefficient`] under the convention of [`StepScalars`]: a threshold of +inf is off,
/// and a non-finite norm leaves the gradient as it is, so that its NaN and Inf stay visible.
pub(crate) fn coefficient(norm: f64, max_norm: f64) -> f32 {
    let raw = max_norm / (norm + CLIP_EPS);
    if norm.is_finite() && raw < 1.0 { raw as f32 } else { 1.0 }
}

/// Thresholds of clips and skips are finite and above 0.
pub(crate) fn check_threshold(name: &'static str, value: f64) -> Result<(), OptimError> {
    ensure(value.is_finite() && value > 0.0, name, value, "finite and above 0 (leave it out to turn it off)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_the_threshold_the_coefficient_is_one() {
        assert_eq!(clip_coefficient(0.0, 1.0), Ok(1.0));
        assert_eq!(clip_coefficient(0.5, 1.0), Ok(1.0));
        assert_eq!(clip_coefficient(1.0 - 2e-6, 1.0), Ok(1.0));
        assert_eq!(clip_coefficient(4.0, 1.0), Ok((1.0f64 / 4.000_001) as f32));
        assert_eq!(clip_coefficient(1.0, 1.0), Ok((1.0f64 / 1.000_001) as f32));
    }

    #[test]
    fn thresholds_and_norms_are_checked() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(clip_coefficient(1.0, bad), Err(OptimError::Setting { .. })), "{bad}");
        }
        assert!(matches!(clip_coefficient(f64::NAN, 1.0), Err(OptimError::NonFiniteNorm { .. })));
        let inf = Err(OptimError::NonFiniteNorm { norm: f64::INFINITY });
        assert_eq!(clip_coefficient(f64::INFINITY, 1.0), inf);
    }

    #[test]
    fn the_scalar_convention_never_hides_a_bad_norm() {
        for norm in [f64::NAN, f64::INFINITY] {
            assert_eq!(coefficient(norm, 1.0), 1.0);
            assert_eq!(coefficient(norm, f64::INFINITY), 1.0);
        }
        assert_eq!(coefficient(1e30, f64::INFINITY), 1.0);
    }
}
