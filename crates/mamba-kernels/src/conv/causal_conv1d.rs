use crate::elem::{CppType, Elem};
use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, ensure, need};
use bytemuck::{Pod, Zeroable};
use mamba_cuda::{Dims, View, ViewMut};

/// Widest convolution of the kernels.
pub const MAX_WIDTH: usize = 8;
/// Warps of a block, each with its own tile; `WARPS` in the kernel.
const WARPS: usize = 4;
const LANES: usize = 32;
/// Steps of a tile are multiples of this: of the rows that a warp has in flight.
const STEPS: usize = 24;
/// Shorter sequences go without vectors: one channel a thread occupies more of the device.
const SHORT: usize = 4;

/// Sizes as the kernels take them; mirrors `ConvArgs` in `causal_conv1d.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct ConvArgs {
    batch: i64,
    seq_len: i64,
    channels: i64,
    ld_x: i64,
    ld_dx: i64,
    forward_steps: i64,
    backward_steps: i64,
}

impl CppType for ConvArgs {
    const CPP: &'static str = "ConvArgs";
}

/// Sizes of a convolution over `[batch, seq_len, channels]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvShape {
    /// Sequences.
    pub batch: usize,
    /// Steps.
    pub seq_len: usize,
    /// Channels.
    pub channels: usize,
    /// Taps, 1 to [`MAX_WIDTH`].
    pub width: usize,
    /// Elements between tokens of x.
    pub ld_x: usize,
    /// Elements between tokens of d_x.
    pub ld_dx: usize,
}

impl ConvShape {
    /// The kernels' argument.
    pub fn args(&self) -> Val<ConvArgs> {
        Val(ConvArgs {
            batch: self.batch as i64,
            seq_len: self.seq_len as i64,
            channels: self.channels as i64,
            ld_x: self.ld_x as i64,
            ld_dx: self.ld_dx as i64,
            forward_steps: STEPS as i64,
            backward_steps: self.backward_steps() as i64,
        })
    }

    /// Steps of a tile of the backward: long tiles repeat less at their ends and leave fewer sums, but the last round of
    /// blocks must not be nearly empty. `ROUND` blocks run at once on an H200; on other devices the choice is as valid.
    fn backward_steps(&self) -> usize {
        const ROUND: usize = 528;
        /// What the start of a tile costs, in steps.
        const START: usize = 24;
        let groups = self.channels.div_ceil(4 * LANES);
        let cost = |steps: &usize| {
            let blocks = groups * (self.batch * self.seq_len.div_ceil(*steps)).div_ceil(WARPS);
            blocks.div_ceil(ROUND) * (steps + START)
        };
        (1..=8).map(|k| k * STEPS).min_by_key(cost).unwrap_or(STEPS)
    }

    /// Parts that the backward leaves: one a block's tiles.
    pub fn parts(&self) -> usize {
        self.tiles(self.backward_steps()).div_ceil(WARPS)
    }

    fn tiles(&self, steps: usize) -> usize {
        self.batch * self.seq_len.div_ceil(steps)
    }

    /// Elements of the backward's `partial`.
    pub fn partial_len(&self) -> usize {
        self.parts() * self.channels * (self.width + 1)
    }

    /// Elements of a carried state.
    pub fn state_len(&self) -> usize {
        self.batch * self.channels * (self.width - 1)
    }

    fn check(&self, kernel: &'static str) -> Result<()> {
        ensure((1..=MAX_WIDTH).contains(&self.width), kernel, "width", self.width, "1 to 8")?;
        ensure(self.ld_x >= self.channels, kernel, "ld_x", self.ld_x, "at least the number of channels")?;
        ensure(
            self.channels.div_ceil(LANES) * (self.tiles(STEPS) + WARPS) < 1 << 31,
            kernel,
            "batch · seq_len · channels",
            self.batch,
            "2^31 tiles at most",
        )
    }

    fn dims(&self, steps: usize, vector: usize) -> Dims {
        let blocks = self.channels.div_ceil(LANES * vector) * self.tiles(steps).div_ceil(WARPS);
        Dims { grid: [blocks as u32, 1, 1], block: (WARPS * LANES) as u32, shared: 0 }
    }

    /// Elements of a matrix whose tokens lie `ld` apart.
    fn extent(&self, ld: usize) -> usize {
        let tokens = self.batch * self.seq_len;
        if tokens == 0 { 0 } else { (tokens - 1) * ld + self.channels }
    }

    /// Channels of a thread: `wide` where every access is a whole aligned vector and the kernels have it, or one.
    fn vector<T: Elem>(&self, wide: usize, addresses: &[u64], lds: &[usize]) -> usize {
        let bytes = wide * size_of::<T>();
        let aligned = addresses.iter().all(|a| a.is_multiple_of(bytes as u64))
            && lds.iter().all(|ld| (ld * size_of::<T>()).is_multiple_of(bytes))
            && self.channels.is_multiple_of(wide);
        let usual = (2..=4).contains(&self.width) && self.seq_len > SHORT;
        if aligned && usual { wide } else { 1 }
    }
}

crate::kernel! {
    /// out = silu(conv(x) + bias).
    pub struct ConvForward['a, T: Elem] = "conv_forward", |this| {
        format!("<{}, {}, {}>", T::CPP, this.shape.width, this.vector())
    }; {
        /// `[batch, seq_len, channels]`, tokens `ld_x` apart.
        x: View<'a, T>,
        /// `[channels, width]`.
        weight: View<'a, f32>,
        /// `[channels]`.
        bias: Option<View<'a, f32>>,
        /// `[batch, seq_len]`: 1 at the first token of a document.
        reset: Option<View<'a, u8>>,
        /// `[batch, channels, width - 1]`, oldest first; absent: zeros.
        state_in: Option<View<'a, f32>>,
        /// `[batch, seq_len, channels]`.
        out: ViewMut<'a, T>,
        /// `[batch, channels, width - 1]`.
        state_out: Option<ViewMut<'a, f32>>,
        /// Sizes.
        args: Val<ConvArgs>,
    }
    host: {
        /// Sizes.
        shape: ConvShape,
    }
}

impl<T: Elem> ConvForward<'_, T> {
    /// Channels of a thread.
    fn vector(&self) -> usize {
        let s = &self.shape;
        s.vector::<T>(4, &[self.x.ptr(), self.out.ptr()], &[s.ld_x, s.channels])
    }
}

impl<T: Elem> Launch for ConvForward<'_, T> {
    fn check(&self) -> Result<()> {
        let s = &self.shape;
        s.check(Self::NAME)?;
        need(Self::NAME, "x", self.x.len(), s.extent(s.ld_x))?;
        need(Self::NAME, "weight", self.weight.len(), s.channels * s.width)?;
        need(Self::NAME, "bias", self.bias.map_or(s.channels, |b| b.len()), s.channels)?;
        let tokens = s.batch * s.seq_len;
        need(Self::NAME, "reset", self.reset.map_or(tokens, |r| r.len()), tokens)?;
        need(Self::NAME, "out", self.out.len(), tokens * s.channels)?;
        need(Self::NAME, "state_in", self.state_in.map_or(s.state_len(), |x| x.len()), s.state_len())?;
        need(
            Self::NAME,
            "state_out",
            self.state_out.as_ref().map_or(s.state_len(), ViewMut::len),
            s.state_len(),
        )
    }

    fn dims(&self) -> Dims {
        self.shape.dims(STEPS, self.vector())
    }
}

crate::kernel! {
    /// Gradients of the convolution; the sums for the taps and the bias are left in `partial`.
    pub struct ConvBackward['a, T: Elem] = "conv_backward", |this| {
        format!("<{}, {}, {}>", T::CPP, this.shape.width, this.vector())
    }; {
        /// As in the forward.
        x: View<'a, T>,
        /// `[channels, width]`.
        weight: View<'a, f32>,
        /// `[channels]`.
        bias: Option<View<'a, f32>>,
        /// `[batch, seq_len]`.
        reset: Option<View<'a, u8>>,
        /// `[batch, channels, width - 1]`.
        state_in: Option<View<'a, f32>>,
        /// Gradient of the output, `[batch, seq_len, channels]`.
        d_out: View<'a, T>,
        /// A second part of it.
        d_out2: Option<View<'a, T>>,
        /// Gradient of x, tokens `ld_dx` apart; overwritten.
        d_x: ViewMut<'a, T>,
        /// `[parts, channels, width + 1]`.
        partial: ViewMut<'a, f32>,
        /// Sizes.
        args: Val<ConvArgs>,
    }
    host: {
        /// Sizes.
        shape: ConvShape,
    }
}

impl<T: Elem> ConvBackward<'_, T> {
    /// Channels of a thread.
    fn vector(&self) -> usize {
        let (s, wide) = (&self.shape, if size_of::<T>() == 4 { 2 } else { 4 });
        let second = self.d_out2.map_or(0, |d| d.ptr());
        let addresses = [self.x.ptr(), self.d_out.ptr(), second, self.d_x.ptr()];
        s.vector::<T>(wide, &addresses, &[s.ld_x, s.ld_dx, s.channels])
    }
}

impl<T: Elem> Launch for ConvBackward<'_, T> {
    fn check(&self) -> Result<()> {
        let s = &self.shape;
        s.check(Self::NAME)?;
        ensure(s.ld_dx >= s.channels, Self::NAME, "ld_dx", s.ld_dx, "at least the number of channels")?;
        need(Self::NAME, "x", self.x.len(), s.extent(s.ld_x))?;
        need(Self::NAME, "weight", self.weight.len(), s.channels * s.width)?;
        let tokens = s.batch * s.seq_len;
        need(Self::NAME, "d_out", self.d_out.len(), tokens * s.channels)?;
        need(
            Self::NAME,
            "d_out2",
            self.d_out2.map_or(tokens * s.channels, |d| d.len()),
            tokens * s.channels,
        )?;
        need(Self::NAME, "d_x", self.d_x.len(), s.extent(s.ld_dx))?;
        need(Self::NAME, "partial", self.partial.len(), s.partial_len())
    }

    fn dims(&self) -> Dims {
        self.shape.dims(self.shape.backward_steps(), self.vector())
    }
}
