use crate::params::Span;
use mamba_cuda::View;
use mamba_kernels::{Elem, KernelError, Result};

/// The parameters as the device holds them: arenas of `ParamTable::arena_len` elements.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a, T: Elem> {
    /// f32.
    pub master: View<'a, f32>,
    /// Rounded copy for the products; absent where T is f32.
    pub shadow: Option<View<'a, T>>,
    /// A = −exp(A_log) of all layers, each from a multiple of [`GROUP`](mamba_kernels::optim::GROUP) elements on.
    pub neg_a: View<'a, f32>,
}

impl<'a, T: Elem> Weights<'a, T> {
    /// A tensor that products read.
    pub(super) fn bulk(&self, span: Span) -> Result<View<'a, T>> {
        let arena = self.shadow.or(self.master.cast());
        let missing = KernelError::Length { kernel: "model", argument: "shadow", got: 0, need: span.len };
        Ok(arena.ok_or(missing)?.slice(span.range())?)
    }

    /// A tensor that stays f32.
    pub(super) fn keep(&self, span: Span) -> Result<View<'a, f32>> {
        Ok(self.master.slice(span.range())?)
    }

    /// [`Weights::keep`] of a tensor that may be absent.
    pub(super) fn keep_if(&self, span: Option<Span>) -> Result<Option<View<'a, f32>>> {
        span.map(|span| self.keep(span)).transpose()
    }
}
