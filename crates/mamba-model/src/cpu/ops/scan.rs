use super::{dims, mask, to_tiles};
use crate::cpu::buffer::Buffer;
use crate::cpu::derived::LayerWeights;
use crate::cpu::dims::{Dims, GROUP, LANES, ROWS, row_task};
use crate::cpu::scan_bwd::{ScanBwd, ScanBwdScratch};
use crate::cpu::scan_fwd::{ScanFwd, ScanFwdScratch, ScanInput, StepSize, store_state};
use crate::error::Result;
use crate::input::check_len;

/// Gated selective scan: sizes and inputs. The formula is that of [`oracle::scan`](crate::oracle::scan).
#[derive(Debug, Clone, Copy)]
pub struct SelectiveScan<'a> {
    /// Sequences.
    pub batch: usize,
    /// Steps.
    pub seq_len: usize,
    /// Channels.
    pub channels: usize,
    /// States of a channel.
    pub states: usize,
    /// `[batch, seq_len, channels]`.
    pub u: &'a [f32],
    /// Δ before bias and softplus, like u.
    pub delta: &'a [f32],
    /// `[channels, states]`, negative.
    pub a: &'a [f32],
    /// `[batch, seq_len, states]`.
    pub b: &'a [f32],
    /// Like b.
    pub c: &'a [f32],
    /// `[channels]`.
    pub d: &'a [f32],
    /// `[channels]`.
    pub delta_bias: &'a [f32],
    /// Gate, like u.
    pub z: &'a [f32],
    /// `[batch, channels, states]`.
    pub h0: &'a [f32],
    /// `[batch, seq_len]`: 1 at the first token of a document.
    pub reset: Option<&'a [u8]>,
}

/// What [`SelectiveScan::forward`] returns.
#[derive(Debug, Clone)]
pub struct ScanOutput {
    /// `[batch, seq_len, channels]`.
    pub out: Vec<f32>,
    /// State after the last step, `[batch, channels, states]`.
    pub h_last: Vec<f32>,
}

/// Gradients, each like the input of its name. None flows into `h0`.
#[derive(Debug, Clone, Default)]
pub struct ScanGradients {
    /// Of `u`.
    pub u: Vec<f32>,
    /// Of `delta`.
    pub delta: Vec<f32>,
    /// Of `a`.
    pub a: Vec<f32>,
    /// Of `b`.
    pub b: Vec<f32>,
    /// Of `c`.
    pub c: Vec<f32>,
    /// Of `d`.
    pub d: Vec<f32>,
    /// Of `delta_bias`.
    pub delta_bias: Vec<f32>,
    /// Of `z`.
    pub z: Vec<f32>,
}

/// The inputs as the loops read them.
struct Staged {
    dims: Dims,
    weights: LayerWeights,
    u: Buffer,
    delta: Buffer,
    xz: Buffer,
    q: Vec<f32>,
    reset: Vec<u8>,
}

impl Staged {
    fn input(&self, batch: usize, group: usize) -> ScanInput<'_> {
        let Self { dims, weights, u, delta, xz, q, reset } = self;
        ScanInput { dims, weights, u, delta, xz, q, reset, batch, group }
    }

    /// Every (batch row, group), in the order of the buffers that hold one piece each.
    fn tasks(&self) -> impl Iterator<Item = (usize, usize)> {
        let batch = self.dims.batch;
        (0..self.dims.groups).flat_map(move |g| (0..batch).map(move |b| (b, g)))
    }
}

impl SelectiveScan<'_> {
    /// Runs the scan.
    ///
    /// # Errors
    /// [`ModelError::Config`](crate::ModelError::Config), [`ModelError::Length`](crate::ModelError::Length).
    pub fn forward(&self) -> Result<ScanOutput> {
        Ok(self.run(&self.stage()?).0)
    }

    /// Adjoint of [`SelectiveScan::forward`] for the gradient of `out`.
    ///
    /// # Errors
    /// As [`SelectiveScan::forward`].
    pub fn backward(&self, d_out: &[f32]) -> Result<ScanGradients> {
        let staged = self.stage()?;
        let d = &staged.dims;
        check_len("d_out", d_out.len(), d.tokens * d.d_inner, "[batch, seq_len, channels]")?;
        let kept = self.run(&staged).1;
        let mut dg = Buffer::zeros(d.tiled(d.d_inner));
        to_tiles(d, d_out, &mut dg, (0, d.groups));
        let mut grads = ScanGradients {
            u: vec![0.0; self.u.len()],
            delta: vec![0.0; self.u.len()],
            a: vec![0.0; self.a.len()],
            b: vec![0.0; self.b.len()],
            c: vec![0.0; self.c.len()],
            d: vec![0.0; self.channels],
            delta_bias: vec![0.0; self.channels],
            z: vec![0.0; self.z.len()],
        };
        for ((batch, group), kept) in staged.tasks().zip(kept.chunks_exact(d.chunks * d.group_state())) {
            task_back(staged.input(batch, group), kept, &dg, &mut grads);
        }
        Ok(grads)
    }

    fn stage(&self) -> Result<Staged> {
        let d = dims((self.batch, self.seq_len), self.channels, self.states, 1)?;
        let (wide, narrow, layout) =
            (d.tokens * d.d_inner, d.tokens * d.d_state, "[batch, seq_len, channels]");
        check_len("u", self.u.len(), wide, layout)?;
        check_len("delta", self.delta.len(), wide, layout)?;
        check_len("z", self.z.len(), wide, layout)?;
        check_len("a", self.a.len(), d.d_inner * d.d_state, "[channels, states]")?;
        check_len("b", self.b.len(), narrow, "[batch, seq_len, states]")?;
        check_len("c", self.c.len(), narrow, "[batch, seq_len, states]")?;
        check_len("d", self.d.len(), d.d_inner, "[channels]")?;
        check_len("delta_bias", self.delta_bias.len(), d.d_inner, "[channels]")?;
        check_len("h0", self.h0.len(), d.batch * d.d_inner * d.d_state, "[batch, channels, states]")?;
        let size = d.tiled(d.d_inner);
        let [mut u, mut delta] = std::array::from_fn(|_| Buffer::zeros(size));
        let mut xz = Buffer::zeros(2 * size);
        to_tiles(&d, self.u, &mut u, (0, d.groups));
        to_tiles(&d, self.delta, &mut delta, (0, d.groups));
        to_tiles(&d, self.z, &mut xz, (d.groups, 2 * d.groups));
        let weights = self.weights(&d);
        for (tiles, first) in delta.chunks_mut(row_task(d.d_inner)).zip((0..).step_by(ROWS)) {
            let rows = ROWS.min(d.tokens - first);
            StepSize { tiles, rows, bias: &weights.dt_bias, dims: &d }.run();
        }
        // Rows of [dt | B | C] with one column of dt, which the scan does not read.
        let rows = self.b.chunks_exact(d.d_state).zip(self.c.chunks_exact(d.d_state));
        let q = rows.flat_map(|(b, c)| [&[0.0][..], b, c].concat()).collect();
        Ok(Staged { weights, u, delta, xz, q, reset: mask(&d, self.reset)?, dims: d })
    }

    fn weights(&self, d: &Dims) -> LayerWeights {
        let mut w = LayerWeights {
            a2: Buffer::zeros(d.wide() * d.states),
            skip: Buffer::zeros(d.wide()),
            dt_bias: Buffer::zeros(d.wide()),
            ..LayerWeights::default()
        };
        w.skip[..d.d_inner].copy_from_slice(self.d);
        w.dt_bias[..d.d_inner].copy_from_slice(self.delta_bias);
        for (c, a) in self.a.chunks_exact(d.d_state).enumerate() {
            let block = &mut w.a2[c / LANES * LANES * d.states..].as_chunks_mut::<LANES>().0;
            for (a2, &a) in block.iter_mut().zip(a) {
                a2[c % LANES] = (f64::from(a) * std::f64::consts::LOG2_E) as f32;
            }
        }
        w
    }

    /// The outputs, and the states before each chunk.
    fn run(&self, staged: &Staged) -> (ScanOutput, Buffer) {
        let d = &staged.dims;
        let (pairs, kept_size) = (d.batch * d.groups, d.chunks * d.group_state());
        let mut h = Buffer::zeros(pairs * d.group_state());
        let mut kept = Buffer::zeros(pairs * kept_size);
        let mut y = Buffer::zeros(d.seq * GROUP);
        let mut out = vec![0.0; d.tokens * d.d_inner];
        let mut scratch = Box::new(ScanFwdScratch::new(d.states));
        let state = d.d_inner * d.d_state;
        let pieces = h.chunks_exact_mut(d.group_state()).zip(kept.chunks_exact_mut(kept_size));
        for ((batch, group), (h, kept)) in staged.tasks().zip(pieces) {
            let (input, h_in) = (staged.input(batch, group), &self.h0[batch * state..][..state]);
            ScanFwd { input, h_in, h, kept: Some(kept), y: &mut y, scratch: &mut scratch }.run();
            scatter(&input, &y, &mut out);
        }
        let mut h_last = vec![0.0; d.batch * state];
        for (b, out) in h_last.chunks_exact_mut(state).enumerate() {
            store_state(d, &h, b, out);
        }
        (ScanOutput { out, h_last }, kept)
    }
}

/// One (batch row, group) of the backward scan, its results put into place.
fn task_back(input: ScanInput<'_>, kept: &[f32], dg: &[f32], grads: &mut ScanGradients) {
    let d = input.dims;
    let [mut g, mut du, mut draw, mut dz] = std::array::from_fn(|_| Buffer::zeros(d.seq * GROUP));
    let mut dbc = Buffer::zeros(d.seq * 2 * d.d_state);
    let (mut da, mut d_skip_bias) = (Buffer::zeros(d.group_state()), Buffer::zeros(2 * GROUP));
    ScanBwd {
        input,
        kept,
        dg,
        g: &mut g,
        du: &mut du,
        draw: &mut draw,
        dz: &mut dz,
        dbc: &mut dbc,
        da: &mut da,
        d_skip_bias: &mut d_skip_bias,
        scratch: &mut ScanBwdScratch::new(d.states),
    }
    .run();
    scatter(&input, &du, &mut grads.u);
    scatter(&input, &draw, &mut grads.delta);
    scatter(&input, &dz, &mut grads.z);
    let add = |out: &mut [f32], part: &[f32]| out.iter_mut().zip(part).for_each(|(o, p)| *o += p);
    for (t, part) in dbc.chunks_exact(2 * d.d_state).enumerate() {
        let (b, c) = part.split_at(d.d_state);
        add(&mut grads.b[input.row(t) * d.d_state..][..d.d_state], b);
        add(&mut grads.c[input.row(t) * d.d_state..][..d.d_state], c);
    }
    let first = input.group * GROUP;
    let end = d.d_inner.min(first + GROUP);
    add(&mut grads.d[first..end], &d_skip_bias[..GROUP]);
    add(&mut grads.delta_bias[first..end], &d_skip_bias[GROUP..]);
    for (c, row) in grads.a[first * d.d_state..end * d.d_state].chunks_exact_mut(d.d_state).enumerate() {
        for (n, out) in row.iter_mut().enumerate() {
            *out += da[(c / LANES * d.states + n) * LANES + c % LANES];
        }
    }
}

/// Copies a group's `[seq, 64]` to its rows and columns of `[batch, seq, d_inner]`.
fn scatter(input: &ScanInput<'_>, piece: &[f32], out: &mut [f32]) {
    let first = input.group * GROUP;
    let width = GROUP.min(input.dims.d_inner - first);
    for (t, row) in piece.chunks_exact(GROUP).enumerate() {
        out[input.row(t) * input.dims.d_inner + first..][..width].copy_from_slice(&row[..width]);
    }
}
