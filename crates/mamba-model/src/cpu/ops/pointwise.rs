use crate::cpu::gemm::Layout;
use crate::cpu::math;
use crate::cpu::norm::{NormBwd, NormFwd};
use crate::error::Result;
use crate::input::check_len;
use pulp::{Arch, Simd, WithSimd};

/// What [`rmsnorm`] returns.
#[derive(Debug, Clone)]
pub struct NormOutput {
    /// Like x.
    pub y: Vec<f32>,
    /// 1 / sqrt(mean(x²) + eps), one a row.
    pub rstd: Vec<f32>,
}

/// What [`rmsnorm_backward`] returns.
#[derive(Debug, Clone)]
pub struct NormGradients {
    /// Like x.
    pub x: Vec<f32>,
    /// Like weight.
    pub weight: Vec<f32>,
}

fn check_rows(name: &'static str, got: usize, dim: usize) -> Result<usize> {
    let rows = got / dim.max(1);
    check_len(name, got, rows * dim, "[rows, weight.len()]")?;
    check_len("weight", dim, dim.max(1), "[dim], at least 1")?;
    Ok(rows)
}

/// RMSNorm of each row of `weight.len()` columns.
///
/// # Errors
/// [`ModelError::Length`](crate::ModelError::Length) where `x` is not whole rows.
pub fn rmsnorm(x: &[f32], weight: &[f32], eps: f64) -> Result<NormOutput> {
    let rows = check_rows("x", x.len(), weight.len())?;
    let (mut y, mut rstd) = (vec![0.0; x.len()], vec![0.0; rows]);
    NormFwd { x, weight, eps, y: &mut y, layout: Layout::rows(weight.len()), rstd: &mut rstd }.run();
    Ok(NormOutput { y, rstd })
}

/// Adjoint of [`rmsnorm`], from the `rstd` that it returned.
///
/// # Errors
/// [`ModelError::Length`](crate::ModelError::Length).
pub fn rmsnorm_backward(x: &[f32], weight: &[f32], rstd: &[f32], d_y: &[f32]) -> Result<NormGradients> {
    let rows = check_rows("x", x.len(), weight.len())?;
    check_len("rstd", rstd.len(), rows, "[rows]")?;
    check_len("d_y", d_y.len(), x.len(), "like x")?;
    let (mut dx, mut d_weight) = (vec![0.0; x.len()], vec![0.0; weight.len()]);
    NormBwd { x, weight, rstd, dy: d_y, dx: &mut dx, accumulate: false, d_weight: &mut d_weight }.run();
    Ok(NormGradients { x: dx, weight: d_weight })
}

#[derive(Clone, Copy)]
enum Function {
    Softplus,
    SoftplusSlope,
    Silu,
    SiluSlope,
}

/// A function over a slice, in place.
struct Map<'a> {
    x: &'a mut [f32],
    function: Function,
}

impl WithSimd for Map<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        for piece in self.x.chunks_mut(S::F32_LANES) {
            let x = s.partial_load_f32s(piece);
            let y = match self.function {
                Function::Softplus => math::softplus(s, x),
                Function::SoftplusSlope => math::softplus_slope(s, math::softplus(s, x)),
                Function::Silu => math::silu(s, x),
                Function::SiluSlope => math::silu_with_slope(s, x).1,
            };
            s.partial_store_f32s(piece, y);
        }
    }
}

fn map(x: &[f32], function: Function) -> Vec<f32> {
    let mut y = x.to_vec();
    Arch::new().dispatch(Map { x: &mut y, function });
    y
}

fn backward(x: &[f32], d_y: &[f32], slope: Function) -> Result<Vec<f32>> {
    check_len("d_y", d_y.len(), x.len(), "like x")?;
    let mut d_x = map(x, slope);
    d_x.iter_mut().zip(d_y).for_each(|(s, d)| *s *= d);
    Ok(d_x)
}

/// ln(1 + eˣ), the identity above 20.
pub fn softplus(x: &[f32]) -> Vec<f32> {
    map(x, Function::Softplus)
}

/// Adjoint of [`softplus`].
///
/// # Errors
/// [`ModelError::Length`](crate::ModelError::Length).
pub fn softplus_backward(x: &[f32], d_y: &[f32]) -> Result<Vec<f32>> {
    backward(x, d_y, Function::SoftplusSlope)
}

/// x · sigmoid(x).
pub fn silu(x: &[f32]) -> Vec<f32> {
    map(x, Function::Silu)
}

/// Adjoint of [`silu`].
///
/// # Errors
/// [`ModelError::Length`](crate::ModelError::Length).
pub fn silu_backward(x: &[f32], d_y: &[f32]) -> Result<Vec<f32>> {
    backward(x, d_y, Function::SiluSlope)
}
