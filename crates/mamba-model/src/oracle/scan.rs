//! Selective scan.
//!
//! Δ = softplus(delta + delta_bias); h_t = exp(Δ·A)·h_{t-1} + Δ·u·B_t; y_t = Σ_n h_t·C_t + D·u; out = y·silu(z). The state
//! starts from zero at a document's first token.

use super::ops::{silu, silu_slope, softplus, softplus_slope};

/// Sizes and inputs.
#[derive(Debug, Clone, Copy)]
pub struct Scan<'a> {
    /// Sequences.
    pub batch: usize,
    /// Steps.
    pub seq_len: usize,
    /// Channels.
    pub channels: usize,
    /// States of a channel.
    pub states: usize,
    /// `[batch, seq_len, channels]`.
    pub u: &'a [f64],
    /// Δ before bias and softplus, like u.
    pub delta: &'a [f64],
    /// `[channels, states]`, negative.
    pub a: &'a [f64],
    /// `[batch, seq_len, states]`.
    pub b: &'a [f64],
    /// Like b.
    pub c: &'a [f64],
    /// `[channels]`.
    pub d: &'a [f64],
    /// `[channels]`.
    pub delta_bias: &'a [f64],
    /// Gate, like u.
    pub z: Option<&'a [f64]>,
    /// `[batch, channels, states]`.
    pub h0: &'a [f64],
    /// `[batch, seq_len]`: 1 at the first token of a document.
    pub reset: Option<&'a [u8]>,
}

/// What [`Scan::forward`] returns.
#[derive(Debug, Clone)]
pub struct ScanOut {
    /// `[batch, seq_len, channels]`.
    pub out: Vec<f64>,
    /// Before the gate.
    pub y: Vec<f64>,
    /// State after every step, `[batch, seq_len, channels, states]`.
    pub h: Vec<f64>,
    /// State after the last step, `[batch, channels, states]`.
    pub h_last: Vec<f64>,
}

/// Gradients, each like the input of its name.
#[derive(Debug, Clone)]
pub struct ScanGrads {
    /// Of `u`.
    pub u: Vec<f64>,
    /// Of `delta`.
    pub delta: Vec<f64>,
    /// Of `a`.
    pub a: Vec<f64>,
    /// Of `b`.
    pub b: Vec<f64>,
    /// Of `c`.
    pub c: Vec<f64>,
    /// Of `d`.
    pub d: Vec<f64>,
    /// Of `delta_bias`.
    pub delta_bias: Vec<f64>,
    /// Of `z`; empty where there is no gate.
    pub z: Vec<f64>,
    /// Of `h0`.
    pub h0: Vec<f64>,
}

impl Scan<'_> {
    fn cut(&self, b: usize, t: usize) -> bool {
        self.reset.is_some_and(|r| r[b * self.seq_len + t] != 0)
    }

    /// Runs the scan.
    pub fn forward(&self) -> ScanOut {
        let (t_len, dim, n) = (self.seq_len, self.channels, self.states);
        let mut state = self.h0.to_vec();
        let (mut y, mut h) = (vec![0.0; self.u.len()], Vec::with_capacity(self.u.len() * n));
        for b in 0..self.batch {
            for t in 0..t_len {
                let token = b * t_len + t;
                for c in 0..dim {
                    let i = token * dim + c;
                    let dt = softplus(self.delta[i] + self.delta_bias[c]);
                    let row = &mut state[(b * dim + c) * n..][..n];
                    y[i] = self.d[c] * self.u[i];
                    for (s, h) in row.iter_mut().enumerate() {
                        let before = if self.cut(b, t) { 0.0 } else { *h };
                        *h = (dt * self.a[c * n + s]).exp() * before + dt * self.u[i] * self.b[token * n + s];
                        y[i] += *h * self.c[token * n + s];
                    }
                    h.extend_from_slice(row);
                }
            }
        }
        let out = match self.z {
            Some(z) => y.iter().zip(z).map(|(y, &z)| y * silu(z)).collect(),
            None => y.clone(),
        };
        ScanOut { out, y, h, h_last: state }
    }

    /// Adjoint of [`Scan::forward`], for the gradients of `out` and of the last state.
    pub fn backward(&self, saved: &ScanOut, d_out: &[f64], d_h_last: Option<&[f64]>) -> ScanGrads {
        let (t_len, dim) = (self.seq_len, self.channels);
        let zeros = |x: &[f64]| vec![0.0; x.len()];
        let mut g = ScanGrads {
            u: zeros(self.u),
            delta: zeros(self.delta),
            a: zeros(self.a),
            b: zeros(self.b),
            c: zeros(self.c),
            d: zeros(self.d),
            delta_bias: zeros(self.delta_bias),
            z: self.z.map_or(Vec::new(), zeros),
            h0: d_h_last.map_or(zeros(self.h0), <[f64]>::to_vec),
        };
        for b in 0..self.batch {
            for t in (0..t_len).rev() {
                for c in 0..dim {
                    let i = (b * t_len + t) * dim + c;
                    let d_y = match self.z {
                        Some(z) => {
                            g.z[i] = d_out[i] * saved.y[i] * silu_slope(z[i]);
                            d_out[i] * silu(z[i])
                        }
                        None => d_out[i],
                    };
                    self.step_back(saved, &mut g, (b, t, c), d_y);
                }
            }
        }
        g
    }

    /// One channel, one step back; `g.h0` holds the gradient of the state after the step and then of the one before.
    fn step_back(&self, saved: &ScanOut, g: &mut ScanGrads, (b, t, c): (usize, usize, usize), d_y: f64) {
        let (t_len, dim, n) = (self.seq_len, self.channels, self.states);
        let token = b * t_len + t;
        let i = token * dim + c;
        let raw = self.delta[i] + self.delta_bias[c];
        let (dt, u) = (softplus(raw), self.u[i]);
        g.d[c] += d_y * u;
        g.u[i] += d_y * self.d[c];
        let mut d_dt = 0.0;
        for s in 0..n {
            let carried = (b * dim + c) * n + s;
            let (a, bt) = (self.a[c * n + s], self.b[token * n + s]);
            let before = match (self.cut(b, t), t) {
                (true, _) => 0.0,
                (false, 0) => self.h0[carried],
                (false, _) => saved.h[(i - dim) * n + s],
            };
            g.c[token * n + s] += d_y * saved.h[i * n + s];
            let d_h = g.h0[carried] + d_y * self.c[token * n + s];
            let decay = (dt * a).exp();
            d_dt += d_h * (decay * a * before + u * bt);
            g.a[c * n + s] += d_h * decay * dt * before;
            g.u[i] += d_h * dt * bt;
            g.b[token * n + s] += d_h * dt * u;
            g.h0[carried] = if self.cut(b, t) { 0.0 } else { d_h * decay };
        }
        let d_raw = d_dt * softplus_slope(raw);
        g.delta[i] = d_raw;
        g.delta_bias[c] += d_raw;
    }
}
