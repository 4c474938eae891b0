use super::{dims, from_tiles, mask, to_tiles};
use crate::cpu::buffer::Buffer;
use crate::cpu::conv::{ConvBwd, ConvFwd, ConvInput, ConvInputGrad, load_history, state_out};
use crate::cpu::dims::{Dims, ROWS, row_task};
use crate::error::Result;
use crate::input::check_len;

/// Causal depthwise convolution and silu: sizes and inputs. The formula is that of
/// [`oracle::conv`](crate::oracle::conv).
#[derive(Debug, Clone, Copy)]
pub struct CausalConv<'a> {
    /// Sequences.
    pub batch: usize,
    /// Steps.
    pub seq_len: usize,
    /// Channels.
    pub channels: usize,
    /// Taps.
    pub width: usize,
    /// `[batch, seq_len, channels]`.
    pub x: &'a [f32],
    /// `[channels, width]`; the last tap multiplies the current sample.
    pub weight: &'a [f32],
    /// `[channels]`.
    pub bias: Option<&'a [f32]>,
    /// `[batch, channels, width - 1]`, oldest first.
    pub state: &'a [f32],
    /// `[batch, seq_len]`: 1 at the first token of a document.
    pub reset: Option<&'a [u8]>,
}

/// What [`CausalConv::forward`] returns.
#[derive(Debug, Clone)]
pub struct ConvOutput {
    /// `[batch, seq_len, channels]`.
    pub out: Vec<f32>,
    /// The last `width - 1` samples, like `state`.
    pub state: Vec<f32>,
}

/// What [`CausalConv::backward`] returns. No gradient flows into the state.
#[derive(Debug, Clone)]
pub struct ConvGradients {
    /// Like x.
    pub x: Vec<f32>,
    /// Like weight.
    pub weight: Vec<f32>,
    /// `[channels]`, also where there is no bias.
    pub bias: Vec<f32>,
}

/// The inputs as the loops read them.
struct Staged {
    dims: Dims,
    xz: Buffer,
    history: Buffer,
    taps: Buffer,
    bias: Buffer,
    reset: Vec<u8>,
}

impl Staged {
    fn input(&self) -> ConvInput<'_> {
        let Self { xz, history, taps, bias, reset, dims } = self;
        ConvInput { xz, history, reset, taps, bias, seq: dims.seq, groups: dims.groups }
    }

    /// Rows of each row task.
    fn tasks(&self) -> impl Iterator<Item = (usize, usize)> {
        let tokens = self.dims.tokens;
        (0..self.dims.row_tasks()).map(move |task| (task, ROWS.min(tokens - task * ROWS)))
    }
}

impl CausalConv<'_> {
    /// Runs the convolution.
    ///
    /// # Errors
    /// [`ModelError::Config`](crate::ModelError::Config), [`ModelError::Length`](crate::ModelError::Length).
    pub fn forward(&self) -> Result<ConvOutput> {
        let staged = self.stage()?;
        let (d, input) = (&staged.dims, staged.input());
        let mut u = Buffer::zeros(d.tiled(d.d_inner));
        for ((task, rows), u) in staged.tasks().zip(u.chunks_exact_mut(row_task(d.d_inner))) {
            ConvFwd { input, task, rows, u }.run();
        }
        let mut state = vec![0.0; self.state.len()];
        let rows =
            state.chunks_exact_mut((d.d_inner * (d.d_conv - 1)).max(1)).zip(staged.reset.chunks(d.seq));
        for (b, (state, reset)) in rows.enumerate() {
            state_out(&input, b, reset.iter().rposition(|&r| r != 0), state);
        }
        Ok(ConvOutput { out: from_tiles(d, &u), state })
    }

    /// Adjoint of [`CausalConv::forward`] for the gradient of `out`.
    ///
    /// # Errors
    /// As [`CausalConv::forward`].
    pub fn backward(&self, d_out: &[f32]) -> Result<ConvGradients> {
        let staged = self.stage()?;
        let (d, input, size) = (&staged.dims, staged.input(), row_task(staged.dims.d_inner));
        check_len("d_out", d_out.len(), d.tokens * d.d_inner, "[batch, seq_len, channels]")?;
        let [mut dc, mut dx] = std::array::from_fn(|_| Buffer::zeros(d.tiled(d.d_inner)));
        let mut sums = Buffer::zeros((d.d_conv + 1) * d.wide());
        let (mut weight, mut bias) = (vec![0.0; self.weight.len()], vec![0.0; self.channels]);
        to_tiles(d, d_out, &mut dc, (0, d.groups));
        for ((task, rows), d_tiles) in staged.tasks().zip(dc.chunks_exact_mut(size)) {
            ConvBwd { input, task, rows, d: d_tiles, sums: &mut sums }.run();
            for (lag, sums) in sums.chunks_exact(d.wide()).enumerate() {
                match d.d_conv.checked_sub(lag + 1) {
                    Some(tap) => {
                        let taps = weight[tap..].iter_mut().step_by(d.d_conv);
                        taps.zip(sums).for_each(|(o, s)| *o += s);
                    }
                    None => bias.iter_mut().zip(sums).for_each(|(o, s)| *o += s),
                }
            }
        }
        for ((task, rows), dx) in staged.tasks().zip(dx.chunks_exact_mut(size)) {
            ConvInputGrad { input, task, rows, dc: &dc, dx }.run();
        }
        Ok(ConvGradients { x: from_tiles(d, &dx), weight, bias })
    }

    fn stage(&self) -> Result<Staged> {
        let d = dims((self.batch, self.seq_len), self.channels, 1, self.width)?;
        let back = d.d_conv - 1;
        check_len("x", self.x.len(), d.tokens * d.d_inner, "[batch, seq_len, channels]")?;
        check_len("weight", self.weight.len(), d.d_inner * d.d_conv, "[channels, width]")?;
        check_len("state", self.state.len(), d.batch * d.d_inner * back, "[batch, channels, width - 1]")?;
        let mut xz = Buffer::zeros(2 * d.tiled(d.d_inner));
        to_tiles(&d, self.x, &mut xz, (0, 2 * d.groups));
        let [mut taps, mut bias] = [d.d_conv, 1].map(|rows| Buffer::zeros(rows * d.wide()));
        for (c, row) in self.weight.chunks_exact(d.d_conv).enumerate() {
            for (lag, &tap) in row.iter().rev().enumerate() {
                taps[lag * d.wide() + c] = tap;
            }
        }
        if let Some(given) = self.bias {
            check_len("bias", given.len(), d.d_inner, "[channels]")?;
            bias[..d.d_inner].copy_from_slice(given);
        }
        let mut history = Buffer::zeros(d.batch * back * d.wide());
        load_history(self.state, d.d_inner, back, d.wide(), &mut history);
        Ok(Staged { xz, history, taps, bias, reset: mask(&d, self.reset)?, dims: d })
    }
}
