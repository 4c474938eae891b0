//! What this machine can do at most, measured with the engine's own inner loops on data in the first caches.

use super::buffer::Buffer;
use super::gemm::{Layout, Out, Packed, Rows, load, store};
use super::math;
use super::model::CpuOptions;
use super::pool::Pool;
use crate::config::ModelConfig;
use crate::error::Result;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use std::time::Instant;

/// Rates of all threads together.
#[derive(Debug, Clone, Copy)]
pub struct Ceilings {
    /// Floating-point operations a second of a matrix product `[64, 256] · [256, 512]`.
    pub gemm_flops: f64,
    /// Exponentials a second.
    pub exps: f64,
}

impl Ceilings {
    /// Measures for about a fifth of a second; the best of several runs counts.
    ///
    /// # Errors
    /// Those of starting the threads.
    pub fn measure(options: &CpuOptions) -> Result<Self> {
        let pool = Pool::new(options.threads)?;
        let threads = pool.threads();
        let (rows, k, n, repeats) = (64, 256, 512, 10);
        let weight = Packed::new(k, n);
        let mut tasks: Vec<_> =
            (0..threads).map(|_| (Buffer::zeros(rows * k), Buffer::zeros(rows * n))).collect();
        let gemm = best(|| {
            pool.run(|| {
                tasks.par_iter_mut().for_each(|(a, c)| {
                    for _ in 0..repeats {
                        let (la, lc) = (Layout::rows(k), Layout::TILED);
                        Rows { a, la, rows, b: &weight, c, lc, out: Out::Set }.run();
                    }
                });
            });
        });
        let exp = best(|| {
            pool.run(|| {
                tasks.par_iter_mut().for_each(|(x, _)| {
                    for _ in 0..repeats * 10 {
                        Exp2InPlace { x: &mut x[..4096] }.run();
                    }
                });
            });
        });
        Ok(Self {
            gemm_flops: (2 * threads * repeats * rows * k * n) as f64 / gemm,
            exps: (threads * repeats * 10 * 4096) as f64 / exp,
        })
    }

    /// Seconds that a training step of `tokens` tokens takes at the least: three products of every projection and
    /// of the head, and every decay of the scan once forward and once backward.
    pub fn step_floor(&self, config: &ModelConfig, tokens: usize) -> f64 {
        let c = &config.backbone;
        let (dm, di) = (c.d_model, c.d_inner());
        let block = dm * 2 * di + di * c.x_proj_cols() + c.dt_rank() * di + di * dm;
        let head = config.lm.as_ref().map_or(0, |lm| lm.rows() * dm) + c.input_dim.map_or(0, |i| i * dm);
        let products = (block * c.n_layers + head) as f64;
        let decays = (di * c.d_state * c.n_layers) as f64;
        tokens as f64 * (6.0 * products / self.gemm_flops + 2.0 * decays / self.exps)
    }
}

fn best(mut op: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..100 {
        let start = Instant::now();
        op();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

struct Exp2InPlace<'a> {
    x: &'a mut [f32],
}

impl Exp2InPlace<'_> {
    fn run(self) {
        Arch::new().dispatch(self);
    }
}

impl WithSimd for Exp2InPlace<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        for i in 0..self.x.len() / S::F32_LANES {
            // The sign keeps the next round's argument at or below zero.
            let x = s.neg_f32s(s.abs_f32s(load::<S>(self.x, i)));
            store::<S>(self.x, i, math::exp2_nonpositive(s, x));
        }
    }
}
