use super::sizes::Sizes;
use crate::params::Span;
use mamba_kernels::Elem;
use mamba_kernels::elementwise::ColumnSums;
use mamba_kernels::fold::Fold;
use mamba_kernels::norm;
use std::ops::Range;

/// Parts start at multiples of so many elements.
const ALIGN: usize = 64;

/// The sums that a block's small gradients are folded from, and where their parts lie in one buffer: every kernel leaves
/// its own, and one launch folds them all.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts {
    pub a: Fold,
    pub d: Fold,
    pub dt_bias: Fold,
    pub conv_weight: Fold,
    pub conv_bias: Fold,
    pub norm: Fold,
    pub in_bias: Fold,
    pub out_bias: Fold,
    len: usize,
}

impl Parts {
    pub fn new<T: Elem>(s: &Sizes) -> Self {
        let mut len = 0;
        let mut place = |fold: Fold| {
            let placed = fold.at(len, 0);
            len += (fold.parts * fold.stride).next_multiple_of(ALIGN);
            placed
        };
        let columns = |cols| Fold::dense(ColumnSums::<T>::parts(s.tokens), cols);
        let (a, d) = (Fold::dense(s.batch, s.d_inner * s.d_state), Fold::dense(s.batch, s.d_inner));
        let (a, d, dt_bias) = (place(a), place(d), place(d));
        // [parts, d_inner, d_conv + 1]: the taps, then the bias.
        let (taps, width) = (s.d_conv, s.d_conv + 1);
        let conv = place(Fold::dense(s.conv().parts(), s.d_inner * width));
        let norm = place(Fold::dense(norm::parts(s.tokens, s.d_model), s.d_model));
        let (in_bias, out_bias) = (place(columns(2 * s.d_inner)), place(columns(s.d_model)));
        let conv_weight = Fold { len: s.d_inner * taps, cols: taps, row_stride: width, ..conv };
        let conv_bias =
            Fold { partial: conv.partial + taps, len: s.d_inner, cols: 1, row_stride: width, ..conv };
        Self { a, d, dt_bias, conv_weight, conv_bias, norm, in_bias, out_bias, len }
    }

    /// Elements of all parts.
    pub fn len(&self) -> usize {
        self.len
    }
}

/// Where a sum's parts lie.
pub(super) fn place(fold: &Fold) -> Range<usize> {
    fold.partial..fold.partial + fold.parts * fold.stride
}

/// The sum into a tensor of the gradient arena.
pub(super) fn into(fold: Fold, span: Span) -> Fold {
    fold.at(fold.partial, span.range().start)
}
