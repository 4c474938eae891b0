use crate::params::{MambaWeights, Span};
use mamba_cuda::{DeviceBuf, View};
use mamba_kernels::optim::{GroupTable, Refresh};
use mamba_kernels::{Elem, KernelError, Kernels, Launch, Result, Val};
use std::marker::PhantomData;

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

/// A device's own copy of a model's parameters.
#[derive(Debug)]
pub struct DeviceWeights<T: Elem> {
    master: DeviceBuf<f32>,
    shadow: Option<DeviceBuf<T>>,
    neg_a: DeviceBuf<f32>,
}

impl<T: Elem> DeviceWeights<T> {
    /// Uploads the parameters, rounds them and computes A.
    ///
    /// # Errors
    /// Those of the device.
    pub fn new(kernels: &Kernels, weights: &MambaWeights) -> Result<Self> {
        let (gpu, table) = (kernels.gpu(), weights.table());
        let mut arena = vec![0.0; table.arena_len()];
        for p in table.iter() {
            p.span.of_mut(&mut arena).copy_from_slice(p.span.of(weights.arena()));
        }
        let groups = GroupTable::new(arena.len(), [], table.layers.iter().map(|l| l.a_log.range()))?;
        let words = DeviceBuf::from_host(gpu, groups.words())?;
        let master = DeviceBuf::from_host(gpu, &arena)?;
        let halves = size_of::<T>() != size_of::<f32>();
        let mut shadow = if halves { Some(DeviceBuf::uninit(gpu, arena.len())?) } else { None };
        let mut neg_a = DeviceBuf::uninit(gpu, groups.neg_a_len())?;
        let refresh = Refresh {
            params: master.view(),
            shadow: shadow.as_mut().map(DeviceBuf::view_mut),
            neg_a: Some(neg_a.view_mut()),
            groups: words.view(),
            len: Val(arena.len() as i64),
            neg_a_len: groups.neg_a_len(),
            marker: PhantomData,
        };
        refresh.launch(kernels)?;
        // The table is read until then.
        gpu.compute().synchronize()?;
        Ok(Self { master, shadow, neg_a })
    }

    /// The parameters as models take them.
    pub fn view(&self) -> Weights<'_, T> {
        let shadow = self.shadow.as_ref().map(DeviceBuf::view);
        Weights { master: self.master.view(), shadow, neg_a: self.neg_a.view() }
    }
}
