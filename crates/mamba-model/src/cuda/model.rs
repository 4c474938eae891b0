use super::activations::{Activations, Keep, Layer, Scratch};
use super::backward::{Grads, NormGrad, column_sums, grad, rounded};
use super::batch::{DeviceBatch, Input};
use super::folds::{Parts, into, place};
use super::forward::{Addition, Block, Entry, Exit, Norm};
use super::head::{Head, Loss, LossInputs, Totals};
use super::products::{Arithmetic, Call, Products};
use super::sizes::Sizes;
use super::state::DeviceState;
use super::weights::Weights;
use crate::config::ModelConfig;
use crate::error::{ModelError, Result};
use crate::input::LossSums;
use crate::params::ParamTable;
use mamba_cuda::{DeviceBuf, View, ViewMut};
use mamba_kernels::elementwise::{Cast, Scale};
use mamba_kernels::fold::FoldParts;
use mamba_kernels::gemm::{Layout, Shape};
use mamba_kernels::loss::LossTotals;
use mamba_kernels::optim::GROUP;
use mamba_kernels::{Elem, Kernels, Launch, Val};
use std::marker::PhantomData;
use std::sync::Arc;

/// How a model runs on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaOptions {
    /// Which products run.
    pub arithmetic: Arithmetic,
    /// Keep a block's input only, and compute its activations again in the backward pass: the same bits.
    pub recompute: bool,
    /// Whether backward passes leave the gradient of a dense input.
    pub input_gradient: bool,
}

/// A model on a GPU, with bulk weights and activations stored as `T`. All memory is taken in [`CudaModel::new`]; no call
/// waits for the device, but for those that say so.
///
/// Order of calls: [`forward`](Self::forward), then [`backward`](Self::backward) or
/// [`loss_backward`](Self::loss_backward) once, with the same batch, weights and state.
#[derive(Debug)]
pub struct CudaModel<T: Elem> {
    plan: Plan,
    products: Products,
    acts: Activations<T>,
    training: Option<Training<T>>,
}

/// What a model that trains has beside its activations.
#[derive(Debug)]
struct Training<T: Elem> {
    scratch: Scratch<T>,
    loss: Option<Loss<T>>,
}

/// What does not change.
#[derive(Debug)]
struct Plan {
    kernels: Kernels,
    table: Arc<ParamTable>,
    sizes: Sizes,
    /// Longest window.
    max_seq_len: usize,
    head: Option<Head>,
    eps: f32,
    keep: Keep,
}

impl Plan {
    fn block<'a, T: Elem>(
        &'a self,
        weights: Weights<'a, T>,
        reset: Option<View<'a, u8>>,
        entry: Entry<'a>,
        index: usize,
    ) -> Result<Block<'a, T>> {
        let s = &self.sizes;
        let len = s.d_inner * s.d_state;
        let start = index * len.next_multiple_of(GROUP);
        let neg_a = weights.neg_a.slice(start..start + len)?;
        let (kernels, params) = (&self.kernels, &self.table.layers[index]);
        Ok(Block { kernels, sizes: s, params, weights, neg_a, reset, entry })
    }
}

impl<T: Elem> CudaModel<T> {
    /// A model for windows of `batch × seq_len` tokens.
    ///
    /// # Errors
    /// [`ModelError::Config`] for sizes that the kernels do not take, [`ModelError::Kernel`] for too little memory.
    pub fn new(
        kernels: &Kernels,
        config: &ModelConfig,
        batch: usize,
        seq_len: usize,
        options: &CudaOptions,
    ) -> Result<Self> {
        let keep = if options.recompute { Keep::Residuals } else { Keep::Everything };
        let mut model = Self::with(kernels, config, batch, seq_len, (options.arithmetic, keep))?;
        let (gpu, sizes) = (kernels.gpu(), &model.plan.sizes);
        let loss = match model.plan.head {
            Some(head) => Some(Loss::new(gpu, sizes, head)?),
            None => None,
        };
        let scratch = Scratch::new(gpu, sizes, options.input_gradient)?;
        model.training = Some(Training { scratch, loss });
        Ok(model)
    }

    /// A model that only runs forward, for windows of up to `seq_len` tokens a sequence.
    ///
    /// # Errors
    /// As [`CudaModel::new`].
    pub fn for_inference(
        kernels: &Kernels,
        config: &ModelConfig,
        batch: usize,
        seq_len: usize,
        arithmetic: Arithmetic,
    ) -> Result<Self> {
        Self::with(kernels, config, batch, seq_len, (arithmetic, Keep::Nothing))
    }

    fn with(
        kernels: &Kernels,
        config: &ModelConfig,
        batch: usize,
        seq_len: usize,
        (arithmetic, keep): (Arithmetic, Keep),
    ) -> Result<Self> {
        let table = Arc::new(ParamTable::new(config)?);
        let sizes = Sizes::new(config, batch, seq_len)?;
        let matrices = table.iter().filter_map(|p| match p.shape[..] {
            [rows, cols] => Some((rows, cols)),
            _ => None,
        });
        let products = Products::new(kernels, arithmetic, matrices)?;
        let acts = Activations::new(kernels.gpu(), &sizes, keep, table.input_proj.is_some())?;
        let head = table.embedding.map(|embedding| {
            let head = table.lm_head.unwrap_or(embedding);
            Head { embedding, head }
        });
        let (kernels, eps) = (kernels.clone(), config.backbone.rms_norm_eps as f32);
        let plan = Plan { kernels, table, sizes, max_seq_len: seq_len, head, eps, keep };
        Ok(Self { plan, products, acts, training: None })
    }

    /// Changes the length of a window; only for a model that runs forward.
    ///
    /// # Errors
    /// [`ModelError::Length`] past the length that the model was made for.
    pub(super) fn set_seq_len(&mut self, seq_len: usize) -> Result<()> {
        let Plan { sizes, max_seq_len, .. } = &mut self.plan;
        if seq_len > *max_seq_len {
            let layout = "[seq_len]";
            return Err(ModelError::Length { name: "window", got: seq_len, expected: *max_seq_len, layout });
        }
        (sizes.seq_len, sizes.tokens) = (seq_len, sizes.batch * seq_len);
        self.products.set_thin(seq_len == 1);
        Ok(())
    }

    /// Enqueues the forward pass of the committed batch. `state` moves on; `None`: the window starts from the empty
    /// state, and where it ends is not kept.
    ///
    /// # Errors
    /// Those of the device.
    pub fn forward(
        &mut self,
        weights: Weights<'_, T>,
        batch: &DeviceBatch,
        mut state: Option<&mut DeviceState>,
    ) -> Result<()> {
        if let Some(state) = &mut state {
            state.enter()?;
        }
        self.run_forward(weights, batch.input()?, Some(batch.reset()), state)
    }

    /// [`forward`](Self::forward) of a window that the state has entered.
    pub(super) fn run_forward(
        &mut self,
        weights: Weights<'_, T>,
        input: Input<'_>,
        reset: Option<View<'_, u8>>,
        mut state: Option<&mut DeviceState>,
    ) -> Result<()> {
        self.first_residual(&weights, input)?;
        let layers = self.plan.sizes.layers;
        for index in 0..layers {
            self.norm(&weights, index, index > 0)?;
            let (entry, exit) = match &mut state {
                Some(state) => state.layer(index, layers)?,
                None => Default::default(),
            };
            let Self { plan, products, acts: Activations { layers, segments, branch, .. }, .. } = self;
            let block = plan.block(weights, reset, entry, index)?;
            let slot = index % layers.len();
            block.inner(products, &mut layers[slot], segments, exit)?;
            block.out(products, &layers[slot], branch)?;
        }
        self.final_norm(&weights)
    }

    /// The input, projected or looked up, into the first residual.
    fn first_residual(&mut self, weights: &Weights<'_, T>, from: Input<'_>) -> Result<()> {
        let Self { plan: Plan { kernels, table, sizes, head, .. }, products, acts, .. } = self;
        let Activations { residuals, input, .. } = acts;
        if let Some(head) = head {
            return head.embed(kernels, sizes, weights, from.ids()?, &mut residuals[0]);
        }
        let Some((weight, bias)) = table.input_proj else {
            return Ok(residuals[0].view_mut().copy_from(from.dense()?, kernels.gpu().compute())?);
        };
        Ok(products.run(Call {
            shape: Shape::dense(Layout::Nn, sizes.tokens, sizes.d_model, sizes.input_width),
            a: narrow(kernels, from.dense()?, input)?,
            b: weights.bulk(weight)?,
            bias: Some(weights.keep(bias)?),
            c: residuals[0].view_mut(),
            accumulate: false,
        })?)
    }

    /// The norm in front of a block; `add`: the block before it still has to be added to the residual stream.
    fn norm(&mut self, weights: &Weights<'_, T>, index: usize, add: bool) -> Result<()> {
        let Self { plan: Plan { kernels, table, sizes, eps, .. }, acts, .. } = self;
        let Activations { layers, residuals, branch, .. } = acts;
        let slot = index % layers.len();
        let Layer { normed, rstd, .. } = &mut layers[slot];
        let (residual, add) = entering(residuals, branch, index, add);
        let norm = Norm {
            weight: weights.keep(table.layers[index].norm)?,
            eps: *eps,
            residual,
            add,
            out: normed.view_mut(),
            rstd: rstd.view_mut(),
        };
        Ok(norm.run(kernels, sizes)?)
    }

    fn final_norm(&mut self, weights: &Weights<'_, T>) -> Result<()> {
        let Self { plan: Plan { kernels, table, sizes, eps, .. }, acts, .. } = self;
        let Activations { residuals, branch, rstd, temporal, hidden, .. } = acts;
        let (residual, add) = entering(residuals, branch, sizes.layers, true);
        let (weight, eps, rstd) = (weights.keep(table.norm_f)?, *eps, rstd.view_mut());
        if let Some(hidden) = hidden {
            let out = hidden.view_mut();
            Norm { weight, eps, residual, add, out, rstd }.run(kernels, sizes)?;
        } else if let Some(temporal) = temporal {
            let out = temporal.view_mut();
            Norm { weight, eps, residual, add, out, rstd }.run(kernels, sizes)?;
        }
        Ok(())
    }

    /// Output of a backbone's last forward pass, `[batch, seq_len, d_model]`.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a language model.
    pub fn temporal(&self) -> Result<View<'_, f32>> {
        let missing = ModelError::Unsupported { call: "temporal", needs: "a bare backbone", has: "a head" };
        self.acts.temporal.as_ref().map(DeviceBuf::view).ok_or(missing)
    }

    /// Enqueues the logits of every sequence's last token of the last forward pass, `[batch, vocab_rows]`.
    pub(super) fn last_logits(&mut self, weights: &Weights<'_, T>, out: &mut DeviceBuf<f32>) -> Result<()> {
        let Self { plan: Plan { sizes, head, .. }, products, acts, .. } = self;
        let (Some(head), Some(hidden)) = (head, &acts.hidden) else { return Err(no_head()) };
        head.last_logits(products, sizes, weights, hidden.view(), out)
    }

    /// Enqueues the backward pass of the last forward pass, from the batch's upstream gradient. Adds to `grads`, the
    /// upstream gradient times `loss_scale`.
    ///
    /// # Errors
    /// Those of the device.
    pub fn backward(
        &mut self,
        weights: Weights<'_, T>,
        batch: &DeviceBatch,
        state: &mut DeviceState,
        loss_scale: View<'_, f32>,
        mut grads: ViewMut<'_, f32>,
    ) -> Result<()> {
        let Self { plan: Plan { kernels, sizes, .. }, acts, .. } = self;
        // The output is not read any more.
        let d_temporal = acts.temporal.as_mut().ok_or_else(no_backbone)?;
        let scaled = Scale {
            input: batch.upstream()?,
            factor: loss_scale,
            out: d_temporal.view_mut(),
            divide: Val(0),
            len: Val((sizes.tokens * sizes.d_model) as i64),
            marker: PhantomData,
        };
        scaled.launch(kernels)?;
        self.final_norm_backward(&weights, &mut grads)?;
        self.blocks_backward(weights, batch, state, &mut grads)?;
        self.input_backward(&weights, batch, loss_scale, &mut grads)
    }

    /// Enqueues loss and backward pass of the last forward pass. Adds the loss to the window's sums and the gradient of
    /// `loss_scale · Σ weight · nll` to `grads`.
    ///
    /// # Errors
    /// Those of the device.
    pub fn loss_backward(
        &mut self,
        weights: Weights<'_, T>,
        batch: &DeviceBatch,
        state: &mut DeviceState,
        loss_scale: View<'_, f32>,
        mut grads: ViewMut<'_, f32>,
    ) -> Result<()> {
        self.loss(weights, batch, loss_scale, Totals::Window, Some(&mut grads))?;
        self.final_norm_backward(&weights, &mut grads)?;
        self.blocks_backward(weights, batch, state, &mut grads)?;
        let Self { plan: Plan { kernels, sizes, .. }, training, .. } = self;
        let Some(Training { scratch, loss: Some(loss) }) = training else { return Err(no_head()) };
        loss.embed_backward(kernels, sizes, batch.input()?.ids()?, &scratch.d_residual, &mut grads)
    }

    fn loss(
        &mut self,
        weights: Weights<'_, T>,
        batch: &DeviceBatch,
        scale: View<'_, f32>,
        totals: Totals,
        grads: Option<&mut Grads<'_>>,
    ) -> Result<()> {
        let Self { plan: Plan { kernels, sizes, .. }, products, acts, training } = self;
        let (Some(Training { loss: Some(loss), .. }), Some(hidden)) = (training, &acts.hidden) else {
            return Err(no_head());
        };
        let inputs = LossInputs { kernels, sizes, weights, batch, hidden: hidden.view(), scale };
        loss.run(products, &inputs, totals, grads)
    }

    fn final_norm_backward(&mut self, weights: &Weights<'_, T>, grads: &mut Grads<'_>) -> Result<()> {
        let Self { plan: Plan { kernels, table, sizes, .. }, acts, training, .. } = self;
        let Training { scratch, loss } = training.as_mut().ok_or_else(no_training)?;
        let norm = NormGrad {
            weight: weights.keep(table.norm_f)?,
            residual: acts.residuals[sizes.layers].view(),
            rstd: acts.rstd.view(),
            accumulate: false,
        };
        let Scratch { d_residual, d_branch, sums, .. } = scratch;
        let fold = Parts::new::<T>(sizes).norm;
        let (to, partial) = ((d_residual, d_branch), sums.view_mut().slice(place(&fold))?);
        match (loss, &acts.temporal) {
            (Some(loss), _) => {
                norm.run(kernels, sizes, loss.buffers.d_hidden.view(), to, partial)?;
            }
            (None, Some(d_temporal)) => norm.run(kernels, sizes, d_temporal.view(), to, partial)?,
            (None, None) => return Err(no_backbone()),
        }
        let folds = [into(fold, table.norm_f)];
        Ok(FoldParts::new(sums.view(), grads.reborrow(), &folds)?.launch(kernels)?)
    }

    fn blocks_backward(
        &mut self,
        weights: Weights<'_, T>,
        batch: &DeviceBatch,
        state: &mut DeviceState,
        grads: &mut Grads<'_>,
    ) -> Result<()> {
        let (count, reset) = (self.plan.sizes.layers, Some(batch.reset()));
        for index in (0..count).rev() {
            let (entry, _) = state.layer(index, count)?;
            // The last block's activations are still there.
            if self.plan.keep == Keep::Residuals && index + 1 < count {
                self.norm(&weights, index, false)?;
                let Self { plan, products, acts: Activations { layers, segments, .. }, .. } = self;
                let block = plan.block(weights, reset, entry, index)?;
                block.inner(products, &mut layers[0], segments, Exit::default())?;
            }
            let Self { plan, products, acts: Activations { layers, residuals, .. }, training } = self;
            let Training { scratch, .. } = training.as_mut().ok_or_else(no_training)?;
            let block = plan.block(weights, reset, entry, index)?;
            let (layer, residual) = (&layers[index % layers.len()], residuals[index].view());
            block.backward(products, layer, residual, scratch, grads)?;
        }
        Ok(())
    }

    /// The input projection's gradients, and that of the input where it is asked for.
    fn input_backward(
        &mut self,
        weights: &Weights<'_, T>,
        batch: &DeviceBatch,
        loss_scale: View<'_, f32>,
        grads: &mut Grads<'_>,
    ) -> Result<()> {
        let Self { plan: Plan { kernels, table, sizes: s, .. }, products, acts, training } = self;
        let Training { scratch, .. } = training.as_mut().ok_or_else(no_training)?;
        let Scratch { d_residual, d_branch, sums, d_input, .. } = scratch;
        let d_out = rounded(d_residual, d_branch)?;
        if let Some((weight, bias)) = table.input_proj {
            products.run(Call {
                shape: Shape::dense(Layout::Tn, s.input_width, s.d_model, s.tokens),
                a: narrowed(batch.input()?.dense()?, &acts.input)?,
                b: d_out,
                bias: None,
                c: grad(grads, weight)?,
                accumulate: true,
            })?;
            let fold = Parts::new::<T>(s).out_bias;
            column_sums(kernels, s, d_out, s.d_model, sums.view_mut().slice(place(&fold))?)?;
            FoldParts::new(sums.view(), grads.reborrow(), &[into(fold, bias)])?.launch(kernels)?;
        }
        let Some([scaled, plain]) = d_input else { return Ok(()) };
        let scaled = match table.input_proj {
            Some((weight, _)) => {
                products.run(Call {
                    shape: Shape::dense(Layout::Nt, s.tokens, s.input_width, s.d_model),
                    a: d_out,
                    b: weights.bulk(weight)?,
                    bias: None,
                    c: scaled.view_mut(),
                    accumulate: false,
                })?;
                scaled.view()
            }
            None => d_residual.view(),
        };
        let unscale = Scale {
            input: scaled,
            factor: loss_scale,
            len: Val(plain.len() as i64),
            out: plain.view_mut(),
            divide: Val(1),
            marker: PhantomData,
        };
        Ok(unscale.launch(kernels)?)
    }

    /// Gradient of the input of the last backward pass, `[batch, seq_len, input_width]`, without the loss scale; `None`
    /// where it was not asked for.
    pub fn input_gradient(&self) -> Option<View<'_, f32>> {
        let Training { scratch, .. } = self.training.as_ref()?;
        scratch.d_input.as_ref().map(|[_, plain]| plain.view())
    }

    /// Forgets the window's loss sums.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn clear_loss(&mut self) -> Result<()> {
        match &mut self.training {
            Some(Training { loss: Some(loss), .. }) => loss.clear(self.plan.kernels.gpu(), Totals::Window),
            _ => Ok(()),
        }
    }

    /// The window's loss sums, one value on the device; `None` for a bare backbone.
    pub fn loss_totals(&self) -> Option<View<'_, LossTotals>> {
        let Training { loss, .. } = self.training.as_ref()?;
        loss.as_ref().map(|loss| loss.totals(Totals::Window).view())
    }

    /// Replaces the window's loss sums: those of all ranks.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn set_loss_totals(&mut self, sums: &LossSums) -> Result<()> {
        let LossSums { nll, weight, tokens } = *sums;
        let Some(Training { loss: Some(loss), .. }) = &mut self.training else { return Ok(()) };
        let stream = self.plan.kernels.gpu().compute();
        let totals = &mut loss.buffers.totals[Totals::Window as usize];
        Ok(totals.view_mut().write(&[LossTotals { nll, weight, tokens }], stream)?)
    }

    /// Loss of the committed batch from the empty state; the window's sums stay. Waits.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a bare backbone, those of the device.
    pub fn evaluate(&mut self, weights: Weights<'_, T>, batch: &DeviceBatch) -> Result<LossSums> {
        let gpu = self.plan.kernels.gpu().clone();
        let Some(Training { loss: Some(loss), .. }) = &mut self.training else { return Err(no_head()) };
        loss.clear(&gpu, Totals::Evaluation)?;
        self.forward(weights, batch, None)?;
        // Without gradients the scale is not read.
        let unread = weights.master.slice(0..1)?;
        self.loss(weights, batch, unread, Totals::Evaluation, None)?;
        let Some(Training { loss: Some(loss), .. }) = &self.training else { return Err(no_head()) };
        let totals = loss.totals(Totals::Evaluation).to_host(gpu.compute())?;
        Ok(totals.first().copied().unwrap_or_default().into())
    }
}

fn no_training() -> ModelError {
    ModelError::Unsupported { call: "backward", needs: "a model that trains", has: "one for inference" }
}

pub(super) fn no_head() -> ModelError {
    ModelError::Unsupported { call: "loss", needs: "a language model", has: "a bare backbone" }
}

fn no_backbone() -> ModelError {
    ModelError::Unsupported { call: "backward", needs: "a bare backbone", has: "a head: use `loss_backward`" }
}

/// The residual stream in front of block `index`, and what must be added to it first and where the sum goes.
fn entering<'a, T: Elem>(
    residuals: &'a mut [DeviceBuf<f32>],
    branch: &'a DeviceBuf<T>,
    index: usize,
    add: bool,
) -> (View<'a, f32>, Option<Addition<'a, T>>) {
    let (before, from) = residuals.split_at_mut(index);
    match (before.last(), add) {
        (Some(last), true) => (last.view(), Some((branch.view(), from[0].view_mut()))),
        _ => (from[0].view(), None),
    }
}

/// The input as products read it: rounded into `to`, or itself where T is f32.
fn narrow<'a, T: Elem>(
    kernels: &Kernels,
    dense: View<'a, f32>,
    to: &'a mut Option<DeviceBuf<T>>,
) -> Result<View<'a, T>> {
    if let Some(to) = to {
        let len = Val(dense.len() as i64);
        Cast { input: dense, out: to.view_mut(), len, marker: PhantomData }.launch(kernels)?;
    }
    narrowed(dense, to)
}

fn narrowed<'a, T: Elem>(dense: View<'a, f32>, copy: &'a Option<DeviceBuf<T>>) -> Result<View<'a, T>> {
    let missing = ModelError::Unsupported { call: "input", needs: "a rounded copy", has: "none" };
    copy.as_ref().map(DeviceBuf::view).or(dense.cast()).ok_or(missing)
}
