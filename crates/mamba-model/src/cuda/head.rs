use super::activations::HeadBuffers;
use super::backward::{Grads, grad};
use super::batch::DeviceBatch;
use super::products::{Call, Products};
use super::sizes::Sizes;
use super::weights::Weights;
use crate::error::Result;
use crate::input::LossSums;
use crate::params::Span;
use mamba_cuda::{DeviceBuf, Gpu, View};
use mamba_kernels::embedding::{EmbeddingBackward, EmbeddingForward};
use mamba_kernels::gemm::{Layout, Shape};
use mamba_kernels::loss::{CrossEntropy, LossTotals, SumLoss};
use mamba_kernels::{Elem, Kernels, Launch, Val};
use std::marker::PhantomData;

/// Embedding and head of a language model, both `[vocab_rows, d_model]`; the same tensor where they are tied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub embedding: Span,
    pub head: Span,
}

/// Which sums a loss goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Totals {
    Window = 0,
    Evaluation = 1,
}

/// What a loss reads.
pub(super) struct LossInputs<'a, T: Elem> {
    pub kernels: &'a Kernels,
    pub sizes: &'a Sizes,
    pub weights: Weights<'a, T>,
    pub batch: &'a DeviceBatch,
    /// `[M, d_model]`, the final norm's output.
    pub hidden: View<'a, T>,
    /// Factor of the gradient, one value.
    pub scale: View<'a, f32>,
}

impl Head {
    /// The residual stream in front of the first block.
    pub fn embed<T: Elem>(
        &self,
        kernels: &Kernels,
        sizes: &Sizes,
        weights: &Weights<'_, T>,
        ids: View<'_, u32>,
        out: &mut DeviceBuf<f32>,
    ) -> Result<()> {
        let call = EmbeddingForward {
            table: weights.bulk(self.embedding)?,
            ids,
            out: out.view_mut(),
            dim: Val(sizes.d_model as i64),
            tokens: Val(sizes.tokens as i32),
            marker: PhantomData,
        };
        Ok(call.launch(kernels)?)
    }

    /// Logits of every sequence's last token, `[batch, vocab_rows]`.
    pub fn last_logits<T: Elem>(
        &self,
        products: &mut Products,
        sizes: &Sizes,
        weights: &Weights<'_, T>,
        hidden: View<'_, T>,
        out: &mut DeviceBuf<f32>,
    ) -> Result<()> {
        let Sizes { batch, seq_len, d_model, vocab_rows, .. } = *sizes;
        let dense = Shape::dense(Layout::Nt, batch, vocab_rows, d_model);
        Ok(products.run(Call {
            shape: Shape { lda: seq_len * d_model, ..dense },
            a: hidden.slice((seq_len - 1) * d_model..sizes.tokens * d_model)?,
            b: weights.bulk(self.head)?,
            bias: None,
            c: out.view_mut(),
            accumulate: false,
        })?)
    }
}

/// The loss of a language model.
#[derive(Debug)]
pub(super) struct Loss<T: Elem> {
    head: Head,
    pub buffers: HeadBuffers<T>,
}

impl<T: Elem> Loss<T> {
    pub fn new(gpu: &Gpu, sizes: &Sizes, head: Head) -> Result<Self> {
        Ok(Self { head, buffers: HeadBuffers::new(gpu, sizes)? })
    }

    /// The embedding's gradient from that of the residual stream.
    pub fn embed_backward(
        &mut self,
        kernels: &Kernels,
        sizes: &Sizes,
        ids: View<'_, u32>,
        d_residual: &DeviceBuf<f32>,
        grads: &mut Grads<'_>,
    ) -> Result<()> {
        let HeadBuffers { counts, sorted, edges, .. } = &mut self.buffers;
        let call = EmbeddingBackward {
            ids,
            d_out: d_residual.view(),
            d_table: grad(grads, self.head.embedding)?,
            counts: counts.view_mut(),
            sorted: sorted.view_mut(),
            edges: edges.view_mut(),
            dim: sizes.d_model,
        };
        Ok(call.launch(kernels)?)
    }

    /// Cross-entropy by chunks of tokens, added to `totals`; with `grads`, its gradients down to `d_hidden`, times the
    /// scale.
    pub fn run(
        &mut self,
        products: &mut Products,
        inputs: &LossInputs<'_, T>,
        totals: Totals,
        mut grads: Option<&mut Grads<'_>>,
    ) -> Result<()> {
        let s = inputs.sizes;
        for first in (0..s.tokens).step_by(s.logit_rows()) {
            let rows = s.logit_rows().min(s.tokens - first);
            self.chunk(products, inputs, (first, rows), grads.as_deref_mut())?;
        }
        let HeadBuffers { nll, totals: all, .. } = &mut self.buffers;
        let call = SumLoss {
            nll: nll.view(),
            targets: inputs.batch.targets()?,
            weights: Some(inputs.batch.weights()?),
            totals: all[totals as usize].view_mut(),
            rows: Val(s.tokens as i64),
            marker: PhantomData,
        };
        Ok(call.launch(inputs.kernels)?)
    }

    fn chunk(
        &mut self,
        products: &mut Products,
        inputs: &LossInputs<'_, T>,
        (first, rows): (usize, usize),
        grads: Option<&mut Grads<'_>>,
    ) -> Result<()> {
        let LossInputs { kernels, sizes: s, weights, batch, hidden, scale } = inputs;
        let HeadBuffers { logits, d_logits, nll, d_hidden, .. } = &mut self.buffers;
        let (dm, vocab) = (s.d_model, s.vocab_rows);
        let hidden = hidden.slice(first * dm..(first + rows) * dm)?;
        products.run(Call {
            shape: Shape::dense(Layout::Nt, rows, vocab, dm),
            a: hidden,
            b: weights.bulk(self.head.head)?,
            bias: None,
            c: logits.view_mut(),
            accumulate: false,
        })?;
        CrossEntropy {
            logits: logits.view(),
            targets: batch.targets()?.slice(first..first + rows)?,
            weights: Some(batch.weights()?.slice(first..first + rows)?),
            scale: *scale,
            nll: nll.view_mut().slice(first..first + rows)?,
            d_logits: grads.is_some().then(|| d_logits.view_mut()),
            columns: Val(vocab as i64),
            rows,
            marker: PhantomData,
        }
        .launch(kernels)?;
        let Some(grads) = grads else { return Ok(()) };
        products.run(Call {
            shape: Shape::dense(Layout::Nn, rows, dm, vocab),
            a: d_logits.view(),
            b: weights.bulk(self.head.head)?,
            bias: None,
            c: d_hidden.view_mut().slice(first * dm..(first + rows) * dm)?,
            accumulate: false,
        })?;
        Ok(products.run(Call {
            shape: Shape::dense(Layout::Tn, vocab, dm, rows),
            a: d_logits.view(),
            b: hidden,
            bias: None,
            c: grad(grads, self.head.head)?,
            accumulate: true,
        })?)
    }

    /// Forgets the sums.
    pub fn clear(&mut self, gpu: &Gpu, totals: Totals) -> Result<()> {
        Ok(self.buffers.totals[totals as usize].view_mut().fill_bytes(0, gpu.compute())?)
    }

    /// The sums on the device, one value.
    pub fn totals(&self, totals: Totals) -> &DeviceBuf<LossTotals> {
        &self.buffers.totals[totals as usize]
    }
}

impl From<LossTotals> for LossSums {
    fn from(LossTotals { nll, weight, tokens }: LossTotals) -> Self {
        Self { nll, weight, tokens }
    }
}
