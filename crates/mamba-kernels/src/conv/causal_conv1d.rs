use crate::elem::{CppType, Elem};
use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, ensure, need};
use bytemuck::{Pod, Zeroable};
use mamba_cuda::{Dims, View, ViewMut};

/// Widest convolution of the kernels.
pub const MAX_WIDTH: usize = 8;
/// Steps of a thread, `TT` in the kernel.
const STEPS: usize = 16;
const THREADS: u32 = 128;

/// Sizes as the kernels take them; mirrors `ConvArgs` in `causal_conv1d.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct ConvArgs {
    batch: i64,
    seq_len: i64,
    channels: i64,
    width: i64,
    ld_x: i64,
    ld_dx: i64,
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
            width: self.width as i64,
            ld_x: self.ld_x as i64,
            ld_dx: self.ld_dx as i64,
        })
    }

    /// Parts that the backward leaves: one a tile and sequence.
    pub fn parts(&self) -> usize {
        self.batch * self.seq_len.div_ceil(STEPS)
    }

    /// Elements of the backward's `partial`.
    pub fn partial_len(&self) -> usize {
        self.parts() * self.channels * (self.width + 1)
    }

    /// Elements of a carried state.
    pub fn state_len(&self) -> usize {
        self.batch * self.channels * (self.width - 1)
    }

    /// Channels of a thread.
    fn vector(&self) -> usize {
        match self.width {
            2..=4 => 8,
            1 | 5 | 6 => 4,
            _ => 2,
        }
    }

    fn check(&self, kernel: &'static str) -> Result<()> {
        ensure((1..=MAX_WIDTH).contains(&self.width), kernel, "width", self.width, "1 to 8")?;
        ensure(self.ld_x >= self.channels, kernel, "ld_x", self.ld_x, "at least the number of channels")?;
        ensure(
            self.blocks() < 1 << 31,
            kernel,
            "batch · seq_len · channels",
            self.batch,
            "2^31 blocks at most",
        )
    }

    fn blocks(&self) -> usize {
        (self.channels.div_ceil(self.vector()) * self.parts()).div_ceil(THREADS as usize)
    }

    fn dims(&self) -> Dims {
        Dims { grid: [self.blocks() as u32, 1, 1], block: THREADS, shared: 0 }
    }

    /// Elements of a matrix whose tokens lie `ld` apart.
    fn extent(&self, ld: usize) -> usize {
        let tokens = self.batch * self.seq_len;
        if tokens == 0 { 0 } else { (tokens - 1) * ld + self.channels }
    }

    /// Whether every access of `T` is a whole aligned vector.
    fn vectors<T: Elem>(&self, addresses: &[u64], lds: &[usize]) -> bool {
        let bytes = (self.vector() * size_of::<T>()).min(16);
        let aligned = addresses.iter().all(|a| a.is_multiple_of(bytes as u64));
        aligned
            && self.channels.is_multiple_of(self.vector())
            && lds.iter().all(|ld| (ld * size_of::<T>()).is_multiple_of(bytes))
    }

    fn template<T: Elem>(&self, vector: bool) -> String {
        format!("<{}, {}, {}, {vector}>", T::CPP, self.width, self.vector())
    }
}

crate::kernel! {
    /// out = silu(conv(x) + bias).
    pub struct ConvForward['a, T: Elem] = "conv_forward", |this| {
        let aligned = this.shape.vectors::<T>(&[this.x.ptr(), this.out.ptr()], &[this.shape.ld_x, this.shape.channels]);
        this.shape.template::<T>(aligned)
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
        self.shape.dims()
    }
}

crate::kernel! {
    /// Gradients of the convolution; the sums for the taps and the bias are left in `partial`.
    pub struct ConvBackward['a, T: Elem] = "conv_backward", |this| {
        let (s, second) = (&this.shape, this.d_out2.map_or(0, |d| d.ptr()));
        let addresses = [this.x.ptr(), this.d_out.ptr(), second, this.d_x.ptr()];
        s.template::<T>(s.vectors::<T>(&addresses, &[s.ld_x, s.ld_dx, s.channels]))
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
        self.shape.dims()
    }
}
