use super::folds::Parts;
use super::sizes::Sizes;
use mamba_cuda::{DeviceBuf, Gpu};
use mamba_kernels::embedding::EmbeddingBackward;
use mamba_kernels::loss::LossTotals;
use mamba_kernels::{Elem, Result};

/// What a forward pass keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// All that the backward pass reads.
    Everything,
    /// The residual stream in front of each block; the rest is computed again.
    Residuals,
    /// Nothing: no backward pass follows.
    Nothing,
}

/// What a block keeps for its backward pass. M = tokens.
#[derive(Debug)]
pub(super) struct Layer<T: Elem> {
    /// `[M]`, of the block's norm.
    pub rstd: DeviceBuf<f32>,
    /// `[M, d_model]`, the norm's output.
    pub normed: DeviceBuf<T>,
    /// `[M, 2·d_inner]`, x and z.
    pub xz: DeviceBuf<T>,
    /// `[M, d_inner]`, after the convolution.
    pub u: DeviceBuf<T>,
    /// `[M, x_cols]`: dt, B, C.
    pub q: DeviceBuf<T>,
    /// `[M, d_inner]`, Δ before bias and softplus.
    pub raw: DeviceBuf<T>,
    /// The scan's saved states; absent where no backward pass follows.
    pub saved: Option<DeviceBuf<f32>>,
    /// `[M, d_inner]`, the scan's gated output.
    pub gated: DeviceBuf<T>,
}

impl<T: Elem> Layer<T> {
    pub fn new(gpu: &Gpu, s: &Sizes, keep: Keep) -> Result<Self> {
        let bulk = |cols: usize| DeviceBuf::uninit(gpu, s.tokens * cols);
        let saved = s.scan().saved_len();
        Ok(Self {
            rstd: DeviceBuf::uninit(gpu, s.tokens)?,
            normed: bulk(s.d_model)?,
            xz: bulk(2 * s.d_inner)?,
            u: bulk(s.d_inner)?,
            q: bulk(s.x_cols)?,
            raw: bulk(s.d_inner)?,
            saved: if keep == Keep::Nothing { None } else { Some(DeviceBuf::uninit(gpu, saved)?) },
            gated: bulk(s.d_inner)?,
        })
    }
}

/// Work space of a scan by segments; empty where windows are short.
#[derive(Debug)]
pub(super) struct SegmentSpace {
    /// What enters each segment.
    pub entries: DeviceBuf<f32>,
    /// The segments' sums of Δ.
    pub sums: DeviceBuf<f32>,
}

impl SegmentSpace {
    fn new(gpu: &Gpu, s: &Sizes) -> Result<Self> {
        let scan = s.scan();
        Ok(Self {
            entries: DeviceBuf::uninit(gpu, scan.entries_len())?,
            sums: DeviceBuf::uninit(gpu, scan.sums_len())?,
        })
    }
}

/// Activations of a window.
#[derive(Debug)]
pub(super) struct Activations<T: Elem> {
    /// Of the block at hand.
    pub segments: SegmentSpace,
    /// One for each block; one for all where they are computed again.
    pub layers: Vec<Layer<T>>,
    /// `[M, d_model]`: the residual stream before each block, and before the final norm.
    pub residuals: Vec<DeviceBuf<f32>>,
    /// `[M]`, of the final norm.
    pub rstd: DeviceBuf<f32>,
    /// `[M, d_model]`: the last block's output, not yet added.
    pub branch: DeviceBuf<T>,
    /// `[M, d_model]`: output of a backbone.
    pub temporal: Option<DeviceBuf<f32>>,
    /// `[M, d_model]`: output that a head reads.
    pub hidden: Option<DeviceBuf<T>>,
    /// `[M, input_width]`: the input as the input projection reads it, where that is not f32.
    pub input: Option<DeviceBuf<T>>,
}

impl<T: Elem> Activations<T> {
    pub fn new(gpu: &Gpu, s: &Sizes, keep: Keep, projected: bool) -> Result<Self> {
        let stream = s.tokens * s.d_model;
        let layers = if keep == Keep::Everything { s.layers } else { 1 };
        let lm = s.vocab_rows > 0;
        let halves = size_of::<T>() != size_of::<f32>();
        let optional = |wanted: bool, len| -> Result<Option<DeviceBuf<T>>> {
            Ok(if wanted { Some(DeviceBuf::uninit(gpu, len)?) } else { None })
        };
        Ok(Self {
            segments: SegmentSpace::new(gpu, s)?,
            layers: (0..layers).map(|_| Layer::new(gpu, s, keep)).collect::<Result<_>>()?,
            residuals: (0..=s.layers).map(|_| Ok(DeviceBuf::uninit(gpu, stream)?)).collect::<Result<_>>()?,
            rstd: DeviceBuf::uninit(gpu, s.tokens)?,
            branch: DeviceBuf::uninit(gpu, stream)?,
            temporal: if lm { None } else { Some(DeviceBuf::uninit(gpu, stream)?) },
            hidden: optional(lm, stream)?,
            input: optional(projected && halves, s.tokens * s.input_width)?,
        })
    }
}

/// Gradients and partial sums of the block at hand.
#[derive(Debug)]
pub(super) struct Scratch<T: Elem> {
    /// `[M, d_model]`: gradient of the residual stream.
    pub d_residual: DeviceBuf<f32>,
    /// `[M, d_model]`: the same, rounded for the products; absent where T is f32.
    pub d_branch: Option<DeviceBuf<T>>,
    /// `[M, d_inner]`, of the gated output.
    pub d_gated: DeviceBuf<T>,
    /// `[M, d_inner]`, of u, by way of the scan and of x_proj.
    pub d_u: [DeviceBuf<T>; 2],
    /// `[M, d_inner]`.
    pub d_raw: DeviceBuf<T>,
    /// `[M, x_cols]`.
    pub d_q: DeviceBuf<T>,
    /// `[M, 2·d_inner]`.
    pub d_xz: DeviceBuf<T>,
    /// `[M, d_model]`, of the norm's output.
    pub d_normed: DeviceBuf<T>,
    /// The scan's sums for B and C by channel block.
    pub partial: DeviceBuf<f32>,
    /// Parts of the sums that become gradients of small tensors, laid out as [`Parts`].
    pub sums: DeviceBuf<f32>,
    /// `[M, input_width]`: the gradient of the input, still scaled, and without the scale.
    pub d_input: Option<[DeviceBuf<f32>; 2]>,
}

impl<T: Elem> Scratch<T> {
    pub fn new(gpu: &Gpu, s: &Sizes, input_gradient: bool) -> Result<Self> {
        let bulk = |cols: usize| DeviceBuf::uninit(gpu, s.tokens * cols);
        let floats = |len: usize| DeviceBuf::uninit(gpu, len);
        let halves = size_of::<T>() != size_of::<f32>();
        Ok(Self {
            d_residual: floats(s.tokens * s.d_model)?,
            d_branch: if halves { Some(bulk(s.d_model)?) } else { None },
            d_gated: bulk(s.d_inner)?,
            d_u: [bulk(s.d_inner)?, bulk(s.d_inner)?],
            d_raw: bulk(s.d_inner)?,
            d_q: bulk(s.x_cols)?,
            d_xz: bulk(2 * s.d_inner)?,
            d_normed: bulk(s.d_model)?,
            partial: floats(s.scan().partial_len())?,
            sums: floats(Parts::new::<T>(s).len())?,
            d_input: match input_gradient {
                true => Some([floats(s.tokens * s.input_width)?, floats(s.tokens * s.input_width)?]),
                false => None,
            },
        })
    }
}

/// Buffers of embedding, head and loss.
#[derive(Debug)]
pub(super) struct HeadBuffers<T: Elem> {
    /// `[logit_rows, vocab_rows]`.
    pub logits: DeviceBuf<f32>,
    /// Its gradient.
    pub d_logits: DeviceBuf<T>,
    /// `[M]`.
    pub nll: DeviceBuf<f32>,
    /// `[M, d_model]`, gradient of the hidden state.
    pub d_hidden: DeviceBuf<T>,
    /// Sums of the open window, and of an evaluation.
    pub totals: [DeviceBuf<LossTotals>; 2],
    /// `[vocab_rows]`, `[2·M]`, edges: the embedding gradient's.
    pub counts: DeviceBuf<i32>,
    pub sorted: DeviceBuf<i32>,
    pub edges: DeviceBuf<f32>,
}

impl<T: Elem> HeadBuffers<T> {
    pub fn new(gpu: &Gpu, s: &Sizes) -> Result<Self> {
        let logits = s.logit_rows() * s.vocab_rows;
        Ok(Self {
            logits: DeviceBuf::uninit(gpu, logits)?,
            d_logits: DeviceBuf::uninit(gpu, logits)?,
            nll: DeviceBuf::uninit(gpu, s.tokens)?,
            d_hidden: DeviceBuf::uninit(gpu, s.tokens * s.d_model)?,
            totals: [DeviceBuf::zeros(gpu, 1)?, DeviceBuf::zeros(gpu, 1)?],
            counts: DeviceBuf::uninit(gpu, s.vocab_rows)?,
            sorted: DeviceBuf::uninit(gpu, 2 * s.tokens)?,
            edges: DeviceBuf::uninit(gpu, EmbeddingBackward::edge_len(s.tokens, s.d_model))?,
        })
    }
}
