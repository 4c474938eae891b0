use super::activations::{Layer, Scratch};
use super::folds::{Parts, into, place};
use super::forward::Block;
use super::products::{Call, Products};
use super::sizes::Sizes;
use crate::params::Span;
use mamba_cuda::{DeviceBuf, View, ViewMut};
use mamba_kernels::conv::ConvBackward;
use mamba_kernels::elementwise::ColumnSums;
use mamba_kernels::fold::{Fold, FoldParts};
use mamba_kernels::gemm::{Layout, Shape};
use mamba_kernels::norm::RmsNormBackward;
use mamba_kernels::scan::{FoldStates, ScanBackward};
use mamba_kernels::{Elem, KernelError, Kernels, Launch, Result, Val};
use std::marker::PhantomData;

/// The gradient arena.
pub(super) type Grads<'a> = ViewMut<'a, f32>;

/// A tensor of the gradient arena.
pub(super) fn grad<'a>(grads: &'a mut Grads<'_>, span: Span) -> Result<ViewMut<'a, f32>> {
    Ok(grads.reborrow().slice(span.range())?)
}

/// The gradient of the residual stream as products read it: its rounded copy, or itself where T is f32.
pub(super) fn rounded<'a, T: Elem>(
    d_residual: &'a DeviceBuf<f32>,
    copy: &'a Option<DeviceBuf<T>>,
) -> Result<View<'a, T>> {
    let missing =
        KernelError::Length { kernel: "model", argument: "d_branch", got: 0, need: d_residual.len() };
    copy.as_ref().map(DeviceBuf::view).or(d_residual.view().cast()).ok_or(missing)
}

impl<T: Elem> Block<'_, T> {
    /// The block's adjoint, from `d_residual` to itself. `residual` is the stream in front of the block.
    pub fn backward(
        &self,
        products: &mut Products,
        layer: &Layer<T>,
        residual: View<'_, f32>,
        scratch: &mut Scratch<T>,
        grads: &mut Grads<'_>,
    ) -> Result<()> {
        self.out_backward(products, layer, scratch, grads)?;
        self.scan_backward(layer, scratch)?;
        self.fold_states(scratch)?;
        self.q_backward(products, layer, scratch, grads)?;
        self.conv_backward(layer, scratch)?;
        self.in_backward(products, layer, scratch, grads)?;
        let norm = NormGrad {
            weight: self.weights.keep(self.params.norm)?,
            residual,
            rstd: layer.rstd.view(),
            accumulate: true,
        };
        let Scratch { d_residual, d_branch, d_normed, sums, .. } = scratch;
        let parts = sums.view_mut().slice(place(&Parts::new::<T>(self.sizes).norm))?;
        norm.run(self.kernels, self.sizes, d_normed.view(), (d_residual, d_branch), parts)?;
        FoldParts::new(sums.view(), grads.reborrow(), &self.folds())?.launch(self.kernels)
    }

    /// The sums that become gradients of the block's small tensors.
    fn folds(&self) -> Vec<Fold> {
        let (parts, params) = (Parts::new::<T>(self.sizes), self.params);
        let mut all = vec![
            into(parts.a, params.a_log),
            into(parts.d, params.d),
            into(parts.dt_bias, params.dt_bias),
            into(parts.conv_weight, params.conv_weight),
            into(parts.norm, params.norm),
        ];
        let optional = [
            (parts.conv_bias, params.conv_bias),
            (parts.in_bias, params.in_proj_bias),
            (parts.out_bias, params.out_proj_bias),
        ];
        all.extend(optional.into_iter().filter_map(|(fold, span)| Some(into(fold, span?))));
        all
    }

    fn out_backward(
        &self,
        products: &mut Products,
        layer: &Layer<T>,
        scratch: &mut Scratch<T>,
        grads: &mut Grads<'_>,
    ) -> Result<()> {
        let s = self.sizes;
        let Scratch { d_residual, d_branch, d_gated, sums, .. } = scratch;
        let d_out = rounded(d_residual, d_branch)?;
        products.run(Call {
            shape: Shape::dense(Layout::Tn, s.d_inner, s.d_model, s.tokens),
            a: layer.gated.view(),
            b: d_out,
            bias: None,
            c: grad(grads, self.params.out_proj)?,
            accumulate: true,
        })?;
        if self.params.out_proj_bias.is_some() {
            let to = sums.view_mut().slice(place(&Parts::new::<T>(s).out_bias))?;
            column_sums(self.kernels, s, d_out, s.d_model, to)?;
        }
        products.run(Call {
            shape: Shape::dense(Layout::Nt, s.tokens, s.d_inner, s.d_model),
            a: d_out,
            b: self.weights.bulk(self.params.out_proj)?,
            bias: None,
            c: d_gated.view_mut(),
            accumulate: false,
        })
    }

    /// Gradients of u, raw Δ and z; those of B, C, A_log, D and the Δ bias as partial sums.
    fn scan_backward(&self, layer: &Layer<T>, scratch: &mut Scratch<T>) -> Result<()> {
        let s = self.sizes;
        let (b, c, end) = (s.dt_rank, s.dt_rank + s.d_state, layer.q.len());
        let Scratch { d_gated, d_u, d_raw, d_xz, partial, sums, .. } = scratch;
        let Parts { a, d, dt_bias, .. } = Parts::new::<T>(s);
        let (_, rest) = sums.view_mut().split_at(a.partial)?;
        let (partial_a, rest) = rest.split_at(d.partial - a.partial)?;
        let (partial_d, partial_bias) = rest.split_at(dt_bias.partial - d.partial)?;
        let gate = s.d_inner..d_xz.len();
        let unsaved =
            KernelError::Length { kernel: "model", argument: "saved", got: 0, need: s.scan().saved_len() };
        ScanBackward {
            u: layer.u.view(),
            raw: layer.raw.view(),
            z: layer.xz.view().slice(s.d_inner..layer.xz.len())?,
            b: layer.q.view().slice(b..end)?,
            c: layer.q.view().slice(c..end)?,
            neg_a: self.neg_a,
            d: self.weights.keep(self.params.d)?,
            dt_bias: self.weights.keep(self.params.dt_bias)?,
            reset: self.reset,
            saved: layer.saved.as_ref().ok_or(unsaved)?.view(),
            d_out: d_gated.view(),
            d_u: d_u[0].view_mut(),
            d_raw: d_raw.view_mut(),
            d_z: d_xz.view_mut().slice(gate)?,
            partial_bc: partial.view_mut(),
            partial_a,
            partial_d,
            partial_bias,
            args: s.scan().args(),
            shape: s.scan(),
            marker: PhantomData,
        }
        .launch(self.kernels)
    }

    /// Gradients of B and C.
    fn fold_states(&self, scratch: &mut Scratch<T>) -> Result<()> {
        let s = self.sizes;
        let Scratch { d_q, partial, .. } = scratch;
        let tail = s.dt_rank..d_q.len();
        FoldStates {
            partial: partial.view(),
            d_bc: d_q.view_mut().slice(tail)?,
            tokens: Val(s.tokens as i64),
            blocks: Val(s.scan().channel_blocks() as i32),
            states: Val(s.d_state as i32),
            padded: Val(s.scan().padded_states() as i32),
            ld: Val(s.x_cols as i64),
            shape: s.scan(),
            marker: PhantomData,
        }
        .launch(self.kernels)
    }

    /// dt_proj and x_proj.
    fn q_backward(
        &self,
        products: &mut Products,
        layer: &Layer<T>,
        scratch: &mut Scratch<T>,
        grads: &mut Grads<'_>,
    ) -> Result<()> {
        let s = self.sizes;
        let Scratch { d_raw, d_q, d_u, .. } = scratch;
        products.run(Call {
            shape: Shape { lda: s.x_cols, ..Shape::dense(Layout::Tn, s.dt_rank, s.d_inner, s.tokens) },
            a: layer.q.view(),
            b: d_raw.view(),
            bias: None,
            c: grad(grads, self.params.dt_proj)?,
            accumulate: true,
        })?;
        products.run(Call {
            shape: Shape { ldc: s.x_cols, ..Shape::dense(Layout::Nt, s.tokens, s.dt_rank, s.d_inner) },
            a: d_raw.view(),
            b: self.weights.bulk(self.params.dt_proj)?,
            bias: None,
            c: d_q.view_mut(),
            accumulate: false,
        })?;
        products.run(Call {
            shape: Shape::dense(Layout::Tn, s.d_inner, s.x_cols, s.tokens),
            a: layer.u.view(),
            b: d_q.view(),
            bias: None,
            c: grad(grads, self.params.x_proj)?,
            accumulate: true,
        })?;
        products.run(Call {
            shape: Shape::dense(Layout::Nt, s.tokens, s.d_inner, s.x_cols),
            a: d_q.view(),
            b: self.weights.bulk(self.params.x_proj)?,
            bias: None,
            c: d_u[1].view_mut(),
            accumulate: false,
        })
    }

    fn conv_backward(&self, layer: &Layer<T>, scratch: &mut Scratch<T>) -> Result<()> {
        let (s, shape) = (self.sizes, self.sizes.conv());
        let Scratch { d_u, d_xz, sums, .. } = scratch;
        ConvBackward {
            x: layer.xz.view(),
            weight: self.weights.keep(self.params.conv_weight)?,
            bias: self.weights.keep_if(self.params.conv_bias)?,
            reset: self.reset,
            state_in: self.entry.conv,
            d_out: d_u[0].view(),
            d_out2: Some(d_u[1].view()),
            d_x: d_xz.view_mut(),
            partial: sums.view_mut().slice(place(&Parts::new::<T>(s).conv_weight))?,
            args: shape.args(),
            shape,
            marker: PhantomData,
        }
        .launch(self.kernels)
    }

    fn in_backward(
        &self,
        products: &mut Products,
        layer: &Layer<T>,
        scratch: &mut Scratch<T>,
        grads: &mut Grads<'_>,
    ) -> Result<()> {
        let s = self.sizes;
        let Scratch { d_xz, d_normed, sums, .. } = scratch;
        products.run(Call {
            shape: Shape::dense(Layout::Tn, s.d_model, 2 * s.d_inner, s.tokens),
            a: layer.normed.view(),
            b: d_xz.view(),
            bias: None,
            c: grad(grads, self.params.in_proj)?,
            accumulate: true,
        })?;
        if self.params.in_proj_bias.is_some() {
            let to = sums.view_mut().slice(place(&Parts::new::<T>(s).in_bias))?;
            column_sums(self.kernels, s, d_xz.view(), 2 * s.d_inner, to)?;
        }
        products.run(Call {
            shape: Shape::dense(Layout::Nt, s.tokens, s.d_model, 2 * s.d_inner),
            a: d_xz.view(),
            b: self.weights.bulk(self.params.in_proj)?,
            bias: None,
            c: d_normed.view_mut(),
            accumulate: false,
        })
    }
}

/// Gradient of a bias: parts of the sums over the tokens of `x` `[M, cols]`.
pub(super) fn column_sums<T: Elem>(
    kernels: &Kernels,
    sizes: &Sizes,
    x: View<'_, T>,
    cols: usize,
    partial: ViewMut<'_, f32>,
) -> Result<()> {
    let rows = sizes.tokens;
    ColumnSums {
        x,
        partial,
        rows: Val(rows as i64),
        cols: Val(cols as i32),
        ld: Val(cols as i64),
        rows_per_part: Val(ColumnSums::<T>::rows_per_part(rows) as i64),
        marker: PhantomData,
    }
    .launch(kernels)
}

/// Adjoint of a norm.
pub(super) struct NormGrad<'a> {
    pub weight: View<'a, f32>,
    pub residual: View<'a, f32>,
    pub rstd: View<'a, f32>,
    /// Whether the residual stream goes on beside the norm.
    pub accumulate: bool,
}

impl NormGrad<'_> {
    /// Leaves the weight's gradient as parts.
    pub fn run<T: Elem, O: Elem>(
        self,
        kernels: &Kernels,
        sizes: &Sizes,
        d_out: View<'_, O>,
        (d_residual, d_branch): (&mut DeviceBuf<f32>, &mut Option<DeviceBuf<T>>),
        partial: ViewMut<'_, f32>,
    ) -> Result<()> {
        let Self { weight, residual, rstd, accumulate } = self;
        let (rows, dim) = (sizes.tokens, sizes.d_model);
        RmsNormBackward {
            residual,
            rstd,
            weight,
            d_out,
            d_residual: d_residual.view_mut(),
            d_add: d_branch.as_mut().map(DeviceBuf::view_mut),
            partial,
            accumulate: Val(i32::from(accumulate)),
            rows: Val(rows as i64),
            dim: Val(dim as i32),
            marker: PhantomData,
        }
        .launch(kernels)
    }
}
