use super::shape::{ScanArgs, ScanShape};
use crate::elem::Elem;
use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, need};
use mamba_cuda::{Dims, View, ViewMut};

crate::kernel! {
    /// Adjoint of [`ScanForward`](super::ScanForward); sums over channels and sequences are left as partials.
    pub struct ScanBackward['a, T: Elem] = "scan_backward", |this| {
        let inputs = [this.u.ptr(), this.raw.ptr(), this.z.ptr(), this.d_out.ptr()];
        let outputs = [this.d_u.ptr(), this.d_raw.ptr(), this.d_z.ptr()];
        this.shape.backward_template::<T>(&[inputs.as_slice(), outputs.as_slice()].concat(), [this.b.ptr(), this.c.ptr()])
    }; {
        /// As in the forward.
        u: View<'a, T>,
        /// As in the forward.
        raw: View<'a, T>,
        /// As in the forward.
        z: View<'a, T>,
        /// As in the forward.
        b: View<'a, T>,
        /// As in the forward.
        c: View<'a, T>,
        /// As in the forward.
        neg_a: View<'a, f32>,
        /// As in the forward.
        d: View<'a, f32>,
        /// As in the forward.
        dt_bias: View<'a, f32>,
        /// As in the forward.
        reset: Option<View<'a, u8>>,
        /// What the forward saved.
        saved: View<'a, f32>,
        /// Gradient of the output, `[batch, seq_len, channels]`.
        d_out: View<'a, T>,
        /// Dense `[batch, seq_len, channels]`; overwritten.
        d_u: ViewMut<'a, T>,
        /// Dense `[batch, seq_len, channels]`; overwritten.
        d_raw: ViewMut<'a, T>,
        /// Tokens `ld_z` apart; overwritten.
        d_z: ViewMut<'a, T>,
        /// `ScanShape::partial_len` elements, for [`FoldStates`](super::FoldStates).
        partial_bc: ViewMut<'a, f32>,
        /// Gradient of A_log by sequence, `[batch, channels, states]`.
        partial_a: ViewMut<'a, f32>,
        /// `[batch, channels]`.
        partial_d: ViewMut<'a, f32>,
        /// `[batch, channels]`.
        partial_bias: ViewMut<'a, f32>,
        /// Sizes.
        args: Val<ScanArgs>,
    }
    host: {
        /// Sizes.
        shape: ScanShape,
    }
}

impl<T: Elem> Launch for ScanBackward<'_, T> {
    fn check(&self) -> Result<()> {
        let s = &self.shape;
        s.check(Self::NAME)?;
        let cells = s.batch * s.seq_len * s.channels;
        need(Self::NAME, "u", self.u.len(), s.extent(s.ld_u, s.channels))?;
        need(Self::NAME, "raw", self.raw.len(), s.extent(s.ld_u, s.channels))?;
        need(Self::NAME, "z", self.z.len(), s.extent(s.ld_z, s.channels))?;
        need(Self::NAME, "b", self.b.len(), s.extent(s.ld_bc, s.states))?;
        need(Self::NAME, "c", self.c.len(), s.extent(s.ld_bc, s.states))?;
        need(Self::NAME, "neg_a", self.neg_a.len(), s.channels * s.states)?;
        need(Self::NAME, "saved", self.saved.len(), s.saved_len())?;
        need(Self::NAME, "d_out", self.d_out.len(), cells)?;
        need(Self::NAME, "d_u", self.d_u.len(), cells)?;
        need(Self::NAME, "d_raw", self.d_raw.len(), cells)?;
        need(Self::NAME, "d_z", self.d_z.len(), s.extent(s.ld_z, s.channels))?;
        need(Self::NAME, "partial_bc", self.partial_bc.len(), s.partial_len())?;
        need(Self::NAME, "partial_a", self.partial_a.len(), s.state_len())?;
        need(Self::NAME, "partial_d", self.partial_d.len(), s.batch * s.channels)?;
        need(Self::NAME, "partial_bias", self.partial_bias.len(), s.batch * s.channels)
    }

    fn dims(&self) -> Dims {
        self.shape.backward_dims()
    }
}
