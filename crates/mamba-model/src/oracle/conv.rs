//! Causal depthwise convolution with SiLU.
//!
//! `pre_t = bias + Σ_k weight[k] · x_{t-W+1+k}`, `out = silu(pre)`. Samples before the window come from the carried state;
//! samples before a document's first token count as zero.

use super::ops::{silu, silu_slope};

/// Sizes and inputs.
#[derive(Debug, Clone, Copy)]
pub struct Conv<'a> {
    /// Sequences.
    pub batch: usize,
    /// Steps.
    pub seq_len: usize,
    /// Channels.
    pub channels: usize,
    /// Taps.
    pub width: usize,
    /// `[batch, seq_len, channels]`.
    pub x: &'a [f64],
    /// `[channels, width]`; the last tap multiplies the current sample.
    pub weight: &'a [f64],
    /// `[channels]`.
    pub bias: Option<&'a [f64]>,
    /// `[batch, channels, width - 1]`, oldest first.
    pub state: &'a [f64],
    /// `[batch, seq_len]`: 1 at the first token of a document.
    pub reset: Option<&'a [u8]>,
}

/// What [`Conv::forward`] returns.
#[derive(Debug, Clone)]
pub struct ConvOut {
    /// silu(pre), `[batch, seq_len, channels]`.
    pub out: Vec<f64>,
    /// Before the silu.
    pub pre: Vec<f64>,
    /// The last `width - 1` samples, like `state`.
    pub state: Vec<f64>,
}

/// What [`Conv::backward`] returns.
#[derive(Debug, Clone)]
pub struct ConvGrads {
    /// Like x.
    pub x: Vec<f64>,
    /// Like weight.
    pub weight: Vec<f64>,
    /// `[channels]`, also where there is no bias.
    pub bias: Vec<f64>,
    /// Like the state.
    pub state: Vec<f64>,
}

/// Where a sample lies.
enum Place {
    Window(usize),
    State(usize),
    /// Before the document: zero.
    Outside,
}

impl Conv<'_> {
    /// The sample `back` steps before step t of sequence b.
    fn place(&self, b: usize, t: usize, back: usize, channel: usize) -> Place {
        let cut = |s: usize| self.reset.is_some_and(|r| r[b * self.seq_len + s] != 0);
        // A reset at step s hides everything before s.
        if (0..back.min(t + 1)).any(|i| cut(t - i)) {
            return Place::Outside;
        }
        match t.checked_sub(back) {
            Some(s) => Place::Window((b * self.seq_len + s) * self.channels + channel),
            None => {
                let keep = self.width - 1;
                Place::State((b * self.channels + channel) * keep + keep + t - back)
            }
        }
    }

    fn sample(&self, place: &Place) -> f64 {
        match *place {
            Place::Window(i) => self.x[i],
            Place::State(i) => self.state[i],
            Place::Outside => 0.0,
        }
    }

    fn each(&self, mut visit: impl FnMut(usize, usize, usize)) {
        for b in 0..self.batch {
            for t in 0..self.seq_len {
                for c in 0..self.channels {
                    visit(b, t, c);
                }
            }
        }
    }

    /// Runs the convolution.
    pub fn forward(&self) -> ConvOut {
        let w = self.width;
        let mut pre = Vec::with_capacity(self.x.len());
        self.each(|b, t, c| {
            let taps = (0..w).map(|k| self.weight[c * w + k] * self.sample(&self.place(b, t, w - 1 - k, c)));
            pre.push(self.bias.map_or(0.0, |bias| bias[c]) + taps.sum::<f64>());
        });
        let mut state = self.state.to_vec();
        for b in 0..self.batch {
            for c in 0..self.channels {
                for j in 0..w - 1 {
                    // The sample that lies w - 2 - j steps before the last one.
                    let place = self.place(b, self.seq_len - 1, w - 2 - j, c);
                    state[(b * self.channels + c) * (w - 1) + j] = self.sample(&place);
                }
            }
        }
        ConvOut { out: pre.iter().map(|&p| silu(p)).collect(), pre, state }
    }

    /// Adjoint of [`Conv::forward`], for the gradients of `out` and of the state it leaves.
    pub fn backward(&self, pre: &[f64], d_out: &[f64], d_state_out: Option<&[f64]>) -> ConvGrads {
        let w = self.width;
        let mut g = ConvGrads {
            x: vec![0.0; self.x.len()],
            weight: vec![0.0; self.weight.len()],
            bias: vec![0.0; self.channels],
            state: vec![0.0; self.state.len()],
        };
        self.each(|b, t, c| {
            let i = (b * self.seq_len + t) * self.channels + c;
            let d = d_out[i] * silu_slope(pre[i]);
            g.bias[c] += d;
            for k in 0..w {
                let place = self.place(b, t, w - 1 - k, c);
                g.weight[c * w + k] += d * self.sample(&place);
                add(&mut g, &place, d * self.weight[c * w + k]);
            }
        });
        if let Some(d_state) = d_state_out {
            for b in 0..self.batch {
                for c in 0..self.channels {
                    for j in 0..w - 1 {
                        let place = self.place(b, self.seq_len - 1, w - 2 - j, c);
                        add(&mut g, &place, d_state[(b * self.channels + c) * (w - 1) + j]);
                    }
                }
            }
        }
        g
    }
}

fn add(g: &mut ConvGrads, place: &Place, d: f64) {
    match *place {
        Place::Window(i) => g.x[i] += d,
        Place::State(i) => g.state[i] += d,
        Place::Outside => {}
    }
}
