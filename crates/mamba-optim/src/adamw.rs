//! AdamW: one fused pass over flat arenas.
//!
//! For an element with gradient `g` the pass computes, every operation rounded to `f32` and in this order:
//!
//! ```text
//! g = (g * inv_scale) * clip
//! m = beta1 * m + one_minus_beta1 * g
//! v = beta2 * v + (one_minus_beta2 * g) * g
//! p = decay * p - lr * ((m * bc1) / (sqrt(v * bc2) + eps))
//! ```
//!
//! No multiply-add is fused, on no path: processors with and without FMA, every vector width and the scalar
//! tail give the same bits, and a kernel compiled without contraction can match them. The pass is bound by
//! memory (28 bytes an element), so a fused form would gain nothing. Elements are independent, so neither the
//! chunking nor the number of threads shows in the result.
//!
//! Decoupled weight decay after Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019).

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::error::{OptimError, ensure_len};
use crate::groups::ParamGroups;
use crate::scalars::StepScalars;

/// Elements of a piece of work for one thread.
const CHUNK: usize = 1 << 14;

/// Moments of AdamW and the number of finished updates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdamWState {
    /// First moment, one element a parameter.
    pub m: Vec<f32>,
    /// Second moment, one element a parameter.
    pub v: Vec<f32>,
    /// Finished updates; skipped steps do not count.
    pub step: u64,
}

impl AdamWState {
    /// Zero moments for an arena of `len` elements.
    pub fn new(len: usize) -> Self {
        Self { m: vec![0.0; len], v: vec![0.0; len], step: 0 }
    }

    /// Checks a loaded state against an arena of `len` elements.
    ///
    /// # Errors
    /// [`OptimError::Length`] for moments of another length, [`OptimError::State`] for a moment that no run can
    /// have produced (not finite, or `v` below 0) or a step count at the end of its range.
    pub fn check(&self, len: usize) -> Result<(), OptimError> {
        ensure_len("m", self.m.len(), len)?;
        ensure_len("v", self.v.len(), len)?;
        let bad = |field, value: f64, expected| OptimError::State { field, value, expected };
        if let Some(&m) = self.m.iter().find(|m| !m.is_finite()) {
            return Err(bad("m", f64::from(m), "finite"));
        }
        if let Some(&v) = self.v.iter().find(|v| !(v.is_finite() && **v >= 0.0)) {
            return Err(bad("v", f64::from(v), "finite and at least 0"));
        }
        if self.step == u64::MAX {
            return Err(bad("step", self.step as f64, "below 2^64 - 1"));
        }
        Ok(())
    }
}

/// The arenas of an update. All have the arena's length; `p`, `m`, `v` are written.
#[derive(Debug)]
pub struct AdamWArenas<'a> {
    /// Parameters (the `f32` master in mixed precision).
    pub params: &'a mut [f32],
    /// Gradients, still multiplied by the loss scale.
    pub grads: &'a [f32],
    /// First moments.
    pub m: &'a mut [f32],
    /// Second moments.
    pub v: &'a mut [f32],
}

/// Updates all parameters of `groups`; see the [module](self) for the arithmetic. `clip` is the factor of the
/// clip, exactly 1 for none: the bits are then those of an update that knows no clip.
///
/// Values that depend on the parameters (a half-precision shadow, `A = -exp(A_log)`) are stale afterwards:
/// refresh them.
///
/// # Errors
/// [`OptimError::Length`] for an arena of another length than the groups'; nothing is written then.
pub fn adamw_update(
    arenas: AdamWArenas<'_>,
    groups: &ParamGroups,
    scalars: &StepScalars,
    clip: f32,
) -> Result<(), OptimError> {
    let AdamWArenas { params, grads, m, v } = arenas;
    let len = groups.arena_len();
    ensure_len("params", params.len(), len)?;
    ensure_len("grads", grads.len(), len)?;
    ensure_len("m", m.len(), len)?;
    ensure_len("v", v.len(), len)?;
    let arch = Arch::new();
    let update = |start: usize, chunk: Chunk<'_>| {
        for segment in groups.segments_in(start..start + chunk.p.len()) {
            let at = segment.range.start - start..segment.range.end - start;
            let decay = if segment.decay { scalars.decay } else { 1.0 };
            let piece = Chunk {
                p: &mut chunk.p[at.clone()],
                g: &chunk.g[at.clone()],
                m: &mut chunk.m[at.clone()],
                v: &mut chunk.v[at],
            };
            arch.dispatch(Update { piece, scalars: *scalars, decay, clip });
        }
    };
    if len <= CHUNK {
        update(0, Chunk { p: params, g: grads, m, v });
        return Ok(());
    }
    params
        .par_chunks_mut(CHUNK)
        .zip(grads.par_chunks(CHUNK))
        .zip(m.par_chunks_mut(CHUNK).zip(v.par_chunks_mut(CHUNK)))
        .enumerate()
        .for_each(|(i, ((p, g), (m, v)))| update(i * CHUNK, Chunk { p, g, m, v }));
    Ok(())
}

struct Chunk<'a> {
    p: &'a mut [f32],
    g: &'a [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
}

/// A struct and not a closure, so that the body is sure to be compiled for the vector width `dispatch` chose.
struct Update<'a> {
    piece: Chunk<'a>,
    scalars: StepScalars,
    decay: f32,
    clip: f32,
}

impl WithSimd for Update<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { piece: Chunk { p, g, m, v }, scalars, decay, clip } = self;
        let StepScalars { lr, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, .. } = scalars;
        let StepScalars { bc1, bc2, inv_scale, .. } = scalars;
        for ((p, &g), (m, v)) in p.iter_mut().zip(g).zip(m.iter_mut().zip(v.iter_mut())) {
            let g = (g * inv_scale) * clip;
            *m = beta1 * *m + one_minus_beta1 * g;
            *v = beta2 * *v + (one_minus_beta2 * g) * g;
            let direction = (*m * bc1) / ((*v * bc2).sqrt() + eps);
            *p = decay * *p - lr * direction;
        }
    }
}
