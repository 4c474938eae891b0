use super::activations::{Layer, SegmentSpace};
use super::products::{Call, Products};
use super::sizes::Sizes;
use super::weights::Weights;
use crate::params::LayerParams;
use mamba_cuda::{DeviceBuf, View, ViewMut};
use mamba_kernels::conv::ConvForward;
use mamba_kernels::gemm::{Layout, Shape};
use mamba_kernels::norm::RmsNormForward;
use mamba_kernels::scan::{ScanForward, Segments};
use mamba_kernels::{Elem, Kernels, Launch, Result, Val};
use std::marker::PhantomData;

/// A block and what it reads beside its activations.
pub(super) struct Block<'a, T: Elem> {
    pub kernels: &'a Kernels,
    pub sizes: &'a Sizes,
    pub params: &'a LayerParams,
    pub weights: Weights<'a, T>,
    /// A of this block, `[d_inner, d_state]`.
    pub neg_a: View<'a, f32>,
    /// `[batch, seq_len]`; absent: all zeros.
    pub reset: Option<View<'a, u8>>,
    pub entry: Entry<'a>,
}

/// The state that a block starts from; absent: the empty one.
#[derive(Clone, Copy, Default)]
pub(super) struct Entry<'a> {
    pub conv: Option<View<'a, f32>>,
    pub ssm: Option<View<'a, f32>>,
}

/// Where a block leaves the state that the next window starts from.
#[derive(Default)]
pub(super) struct Exit<'a> {
    pub conv: Option<ViewMut<'a, f32>>,
    pub ssm: Option<ViewMut<'a, f32>>,
}

impl<T: Elem> Block<'_, T> {
    /// Everything up to the gated output, from the block's normed input.
    pub fn inner(
        &self,
        products: &mut Products,
        layer: &mut Layer<T>,
        segments: &mut SegmentSpace,
        exit: Exit<'_>,
    ) -> Result<()> {
        let s = self.sizes;
        products.run(Call {
            shape: Shape::dense(Layout::Nn, s.tokens, 2 * s.d_inner, s.d_model),
            a: layer.normed.view(),
            b: self.weights.bulk(self.params.in_proj)?,
            bias: self.weights.keep_if(self.params.in_proj_bias)?,
            c: layer.xz.view_mut(),
            accumulate: false,
        })?;
        ConvForward {
            x: layer.xz.view(),
            weight: self.weights.keep(self.params.conv_weight)?,
            bias: self.weights.keep_if(self.params.conv_bias)?,
            reset: self.reset,
            state_in: self.entry.conv,
            out: layer.u.view_mut(),
            state_out: exit.conv,
            args: s.conv().args(),
            shape: s.conv(),
            marker: PhantomData,
        }
        .launch(self.kernels)?;
        products.run(Call {
            shape: Shape::dense(Layout::Nn, s.tokens, s.x_cols, s.d_inner),
            a: layer.u.view(),
            b: self.weights.bulk(self.params.x_proj)?,
            bias: None,
            c: layer.q.view_mut(),
            accumulate: false,
        })?;
        products.run(Call {
            shape: Shape { lda: s.x_cols, ..Shape::dense(Layout::Nn, s.tokens, s.d_inner, s.dt_rank) },
            a: layer.q.view(),
            b: self.weights.bulk(self.params.dt_proj)?,
            bias: None,
            c: layer.raw.view_mut(),
            accumulate: false,
        })?;
        self.scan(layer, segments, exit.ssm)
    }

    fn scan(
        &self,
        layer: &mut Layer<T>,
        space: &mut SegmentSpace,
        h_last: Option<ViewMut<'_, f32>>,
    ) -> Result<()> {
        let (s, shape) = (self.sizes, self.sizes.scan());
        let (b, c, end) = (s.dt_rank, s.dt_rank + s.d_state, layer.q.len());
        let (u, raw, b) = (layer.u.view(), layer.raw.view(), layer.q.view().slice(b..end)?);
        let (neg_a, reset, dt_bias) = (self.neg_a, self.reset, self.weights.keep(self.params.dt_bias)?);
        let (entries, sums, h0) = (space.entries.view_mut(), space.sums.view_mut(), self.entry.ssm);
        Segments { u, raw, b, neg_a, dt_bias, reset, h0, entries, sums, shape }.launch(self.kernels)?;
        ScanForward {
            u,
            raw,
            z: layer.xz.view().slice(s.d_inner..layer.xz.len())?,
            b,
            c: layer.q.view().slice(c..end)?,
            neg_a,
            d: self.weights.keep(self.params.d)?,
            dt_bias,
            reset,
            h0: if shape.segments() == 1 { h0 } else { Some(space.entries.view()) },
            out: layer.gated.view_mut(),
            h_last,
            saved: layer.saved.as_mut().map(DeviceBuf::view_mut),
            args: shape.args(),
            shape,
            marker: PhantomData,
        }
        .launch(self.kernels)
    }

    /// The block's output, to be added to the residual stream.
    pub fn out(&self, products: &mut Products, layer: &Layer<T>, branch: &mut DeviceBuf<T>) -> Result<()> {
        let s = self.sizes;
        products.run(Call {
            shape: Shape::dense(Layout::Nn, s.tokens, s.d_model, s.d_inner),
            a: layer.gated.view(),
            b: self.weights.bulk(self.params.out_proj)?,
            bias: self.weights.keep_if(self.params.out_proj_bias)?,
            c: branch.view_mut(),
            accumulate: false,
        })
    }
}

/// What is added to the residual stream, and where the sum goes.
pub(super) type Addition<'a, T> = (View<'a, T>, ViewMut<'a, f32>);

/// sum = residual + add, out = its RMSNorm.
pub(super) struct Norm<'a, T: Elem, O: Elem> {
    pub weight: View<'a, f32>,
    pub eps: f32,
    pub residual: View<'a, f32>,
    /// The last block's output; absent in front of the first block.
    pub add: Option<Addition<'a, T>>,
    pub out: ViewMut<'a, O>,
    pub rstd: ViewMut<'a, f32>,
}

impl<T: Elem, O: Elem> Norm<'_, T, O> {
    pub fn run(self, kernels: &Kernels, sizes: &Sizes) -> Result<()> {
        let Self { weight, eps, residual, add, out, rstd } = self;
        let (add, sum) = add.unzip();
        let (rows, dim) = (Val(sizes.tokens as i64), Val(sizes.d_model as i32));
        RmsNormForward {
            residual,
            add,
            weight,
            sum,
            out,
            rstd,
            eps: Val(eps),
            rows,
            dim,
            marker: PhantomData,
        }
        .launch(kernels)
    }
}
