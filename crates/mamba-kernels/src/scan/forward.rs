use super::shape::{ScanArgs, ScanShape};
use crate::elem::Elem;
use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, need};
use mamba_cuda::{Dims, View, ViewMut};

crate::kernel! {
    /// h_t = exp(Δ·A)·h + Δ·u·B; out = (h·C + D·u)·silu(z), Δ = softplus(raw + bias).
    pub struct ScanForward['a, T: Elem] = "scan_forward", |this| {
        this.shape.forward_template::<T>()
    }; {
        /// `[batch, seq_len, channels]`, tokens `ld_u` apart.
        u: View<'a, T>,
        /// Δ before bias and softplus, as u.
        raw: View<'a, T>,
        /// Gate, tokens `ld_z` apart.
        z: View<'a, T>,
        /// `[batch, seq_len, states]`, tokens `ld_bc` apart.
        b: View<'a, T>,
        /// As b.
        c: View<'a, T>,
        /// A `[channels, states]`, negative.
        neg_a: View<'a, f32>,
        /// `[channels]`.
        d: View<'a, f32>,
        /// `[channels]`.
        dt_bias: View<'a, f32>,
        /// `[batch, seq_len]`: 1 at the first token of a document.
        reset: Option<View<'a, u8>>,
        /// `[batch, channels, states]`, absent: zeros; what [`SegmentEntries`](super::SegmentEntries) left where sequences
        /// are cut.
        h0: Option<View<'a, f32>>,
        /// `[batch, seq_len, channels]`.
        out: ViewMut<'a, T>,
        /// `[batch, channels, states]`.
        h_last: Option<ViewMut<'a, f32>>,
        /// States for the backward, `ScanShape::saved_len` elements.
        saved: Option<ViewMut<'a, f32>>,
        /// Sizes.
        args: Val<ScanArgs>,
    }
    host: {
        /// Sizes.
        shape: ScanShape,
    }
}

impl<T: Elem> Launch for ScanForward<'_, T> {
    fn check(&self) -> Result<()> {
        let s = &self.shape;
        s.check(Self::NAME)?;
        let tokens = s.batch * s.seq_len;
        need(Self::NAME, "u", self.u.len(), s.extent(s.ld_u, s.channels))?;
        need(Self::NAME, "raw", self.raw.len(), s.extent(s.ld_u, s.channels))?;
        need(Self::NAME, "z", self.z.len(), s.extent(s.ld_z, s.channels))?;
        need(Self::NAME, "b", self.b.len(), s.extent(s.ld_bc, s.states))?;
        need(Self::NAME, "c", self.c.len(), s.extent(s.ld_bc, s.states))?;
        need(Self::NAME, "neg_a", self.neg_a.len(), s.channels * s.states)?;
        need(Self::NAME, "d", self.d.len(), s.channels)?;
        need(Self::NAME, "dt_bias", self.dt_bias.len(), s.channels)?;
        need(Self::NAME, "reset", self.reset.map_or(tokens, |r| r.len()), tokens)?;
        let entries = s.state_len() * s.segments();
        need(Self::NAME, "h0", self.h0.map_or(s.state_len(), |h| h.len()), entries)?;
        need(Self::NAME, "out", self.out.len(), tokens * s.channels)?;
        need(Self::NAME, "h_last", self.h_last.as_ref().map_or(s.state_len(), ViewMut::len), s.state_len())?;
        need(Self::NAME, "saved", self.saved.as_ref().map_or(s.saved_len(), ViewMut::len), s.saved_len())
    }

    fn dims(&self) -> Dims {
        self.shape.forward_dims(self.shape.segments())
    }
}
