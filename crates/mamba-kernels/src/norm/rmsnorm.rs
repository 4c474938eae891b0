use crate::elem::Elem;
use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, ensure, need};
use mamba_cuda::{Dims, View, ViewMut};

/// Longest row.
pub const MAX_DIM: usize = 8192;
/// Blocks of the backward, at most: a constant, so that the order of the weight gradient's sum depends on the rows only.
const MAX_PARTS: usize = 528;
/// Columns of a pack.
const VECTOR: usize = 4;

/// How a row is spread over threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    /// Packs a lane.
    packs: usize,
    /// Warps a row.
    warps: usize,
    /// Whether packs move whole.
    vector: bool,
}

/// Every plan that is compiled.
const PLANS: [Plan; 8] = {
    const fn plan(packs: usize, warps: usize, vector: bool) -> Plan {
        Plan { packs, warps, vector }
    }
    [
        plan(2, 1, true),
        plan(3, 1, true),
        plan(6, 1, true),
        plan(2, 4, true),
        plan(4, 4, true),
        plan(4, 16, true),
        plan(2, 4, false),
        plan(4, 16, false),
    ]
};

impl Plan {
    /// The narrowest that holds a row of `dim` columns; `check` refuses rows that none holds.
    fn choose(dim: usize, vector: bool) -> Self {
        let fits = |p: &&Self| p.vector == vector && p.packs * p.warps * 32 * VECTOR >= dim;
        PLANS.iter().find(fits).copied().unwrap_or(PLANS[PLANS.len() - 1])
    }

    fn threads(self) -> usize {
        if self.warps < 4 { 128 } else { self.warps * 32 }
    }

    /// Rows that a block works on at a time.
    fn rows(self) -> usize {
        self.threads() / (self.warps * 32)
    }

    fn template<T: Elem, O: Elem>(self) -> String {
        format!("<{}, {}, {}, {}, {}>", T::CPP, O::CPP, self.packs, self.warps, self.vector)
    }
}

/// Whether rows of `dim` elements at these addresses can be read in packs of four.
fn is_vector(dim: i32, f32s: &[u64], others: &[(u64, usize)]) -> bool {
    let whole = |address: u64, bytes: usize| address.is_multiple_of((bytes * VECTOR) as u64);
    (dim as usize).is_multiple_of(VECTOR)
        && f32s.iter().all(|&p| whole(p, 4))
        && others.iter().all(|&(p, bytes)| whole(p, bytes))
}

/// Parts of the weight gradient that [`RmsNormBackward`] leaves for `rows` rows of `dim` columns.
pub fn parts(rows: usize, dim: usize) -> usize {
    rows.div_ceil(Plan::choose(dim, dim.is_multiple_of(VECTOR)).rows()).clamp(1, MAX_PARTS)
}

crate::kernel! {
    /// sum = residual + add, rstd = 1/√(mean(sum²) + eps), out = sum · rstd · weight, row by row.
    pub struct RmsNormForward['a, T: Elem, O: Elem] = "rms_norm_forward", |this| this.plan().template::<T, O>(); {
        /// `[rows, dim]`.
        residual: View<'a, f32>,
        /// `[rows, dim]`; absent: the norm of the residual itself.
        add: Option<View<'a, T>>,
        /// `[dim]`.
        weight: View<'a, f32>,
        /// `[rows, dim]`: residual + add. Present exactly where `add` is.
        sum: Option<ViewMut<'a, f32>>,
        /// `[rows, dim]`.
        out: ViewMut<'a, O>,
        /// `[rows]`.
        rstd: ViewMut<'a, f32>,
        /// Added to the mean square.
        eps: Val<f32>,
        /// Number of rows.
        rows: Val<i64>,
        /// Columns, at most [`MAX_DIM`].
        dim: Val<i32>,
    }
}

impl<T: Elem, O: Elem> RmsNormForward<'_, T, O> {
    fn plan(&self) -> Plan {
        let f32s = [self.residual.ptr(), self.weight.ptr(), self.sum.as_ref().map_or(0, ViewMut::ptr)];
        let others = [(self.add.map_or(0, |a| a.ptr()), size_of::<T>()), (self.out.ptr(), size_of::<O>())];
        Plan::choose(self.dim.0 as usize, is_vector(self.dim.0, &f32s, &others))
    }
}

impl<T: Elem, O: Elem> Launch for RmsNormForward<'_, T, O> {
    fn check(&self) -> Result<()> {
        let cells = check_sizes(Self::NAME, self.rows.0, self.dim.0)?;
        need(Self::NAME, "residual", self.residual.len(), cells)?;
        need(Self::NAME, "add", self.add.map_or(cells, |a| a.len()), cells)?;
        need(Self::NAME, "weight", self.weight.len(), self.dim.0 as usize)?;
        let sum = self.sum.as_ref().map(ViewMut::len);
        let paired = sum.is_some() == self.add.is_some();
        ensure(paired, Self::NAME, "sum", sum.unwrap_or(0), "there exactly where `add` is")?;
        need(Self::NAME, "sum", sum.unwrap_or(cells), cells)?;
        need(Self::NAME, "out", self.out.len(), cells)?;
        need(Self::NAME, "rstd", self.rstd.len(), self.rows.0 as usize)
    }

    fn dims(&self) -> Dims {
        let plan = self.plan();
        let blocks = (self.rows.0 as usize).div_ceil(plan.rows());
        Dims { grid: [blocks as u32, 1, 1], block: plan.threads() as u32, shared: 0 }
    }
}

crate::kernel! {
    /// Adjoint of [`RmsNormForward`]: the gradient of `sum`, which is that of `residual` and `add`, and parts of the
    /// weight gradient, to be folded by [`FoldParts`](crate::fold::FoldParts).
    pub struct RmsNormBackward['a, T: Elem, O: Elem] = "rms_norm_backward", |this| this.plan().template::<T, O>(); {
        /// `[rows, dim]`, the forward's `sum`.
        residual: View<'a, f32>,
        /// `[rows]`.
        rstd: View<'a, f32>,
        /// `[dim]`.
        weight: View<'a, f32>,
        /// `[rows, dim]`.
        d_out: View<'a, O>,
        /// `[rows, dim]`: added to where `accumulate`, else overwritten.
        d_residual: ViewMut<'a, f32>,
        /// `[rows, dim]`: a rounded copy of `d_residual`.
        d_add: Option<ViewMut<'a, T>>,
        /// `[parts(rows, dim), dim]`.
        partial: ViewMut<'a, f32>,
        /// 1 to add to `d_residual`, 0 to overwrite it.
        accumulate: Val<i32>,
        /// Number of rows.
        rows: Val<i64>,
        /// Columns, at most [`MAX_DIM`].
        dim: Val<i32>,
    }
}

impl<T: Elem, O: Elem> RmsNormBackward<'_, T, O> {
    fn plan(&self) -> Plan {
        let f32s = [self.residual.ptr(), self.weight.ptr(), self.d_residual.ptr(), self.partial.ptr()];
        let others = [
            (self.d_out.ptr(), size_of::<O>()),
            (self.d_add.as_ref().map_or(0, ViewMut::ptr), size_of::<T>()),
        ];
        Plan::choose(self.dim.0 as usize, is_vector(self.dim.0, &f32s, &others))
    }
}

impl<T: Elem, O: Elem> Launch for RmsNormBackward<'_, T, O> {
    fn check(&self) -> Result<()> {
        let cells = check_sizes(Self::NAME, self.rows.0, self.dim.0)?;
        let (rows, dim) = (self.rows.0 as usize, self.dim.0 as usize);
        need(Self::NAME, "residual", self.residual.len(), cells)?;
        need(Self::NAME, "rstd", self.rstd.len(), rows)?;
        need(Self::NAME, "weight", self.weight.len(), dim)?;
        need(Self::NAME, "d_out", self.d_out.len(), cells)?;
        need(Self::NAME, "d_residual", self.d_residual.len(), cells)?;
        need(Self::NAME, "d_add", self.d_add.as_ref().map_or(cells, ViewMut::len), cells)?;
        // The cut must not depend on where the buffers lie.
        let misplaced = dim.is_multiple_of(VECTOR) && !self.plan().vector;
        ensure(!misplaced, Self::NAME, "address", 0, "a multiple of four elements in every buffer")?;
        need(Self::NAME, "partial", self.partial.len(), parts(rows, dim) * dim)
    }

    fn dims(&self) -> Dims {
        let blocks = parts(self.rows.0 as usize, self.dim.0 as usize);
        Dims { grid: [blocks as u32, 1, 1], block: self.plan().threads() as u32, shared: 0 }
    }
}

/// Elements of `[rows, dim]`.
fn check_sizes(kernel: &'static str, rows: i64, dim: i32) -> Result<usize> {
    ensure((0..1 << 31).contains(&rows), kernel, "rows", rows as usize, "below 2^31")?;
    let fits = dim > 0 && dim as usize <= MAX_DIM;
    ensure(fits, kernel, "dim", dim as usize, "1 to 8,192")?;
    Ok(rows as usize * dim as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_is_compiled_and_holds_its_rows() {
        for dim in [1, 5, 128, 256, 260, 384, 512, 768, 769, 1024, 1536, 2048, 2560, 4096, 8191, MAX_DIM] {
            for vector in [dim.is_multiple_of(VECTOR), false] {
                let plan = Plan::choose(dim, vector);
                assert!(PLANS.contains(&plan) && plan.vector == vector, "{dim}");
                assert!(plan.packs * plan.warps * 32 * VECTOR >= dim, "{dim}: {plan:?}");
                assert!(plan.rows() >= 1);
            }
        }
        for plan in PLANS {
            for name in [plan.template::<f32, f32>(), plan.template::<half::f16, f32>()] {
                let wanted = format!("void rms_norm_forward{name}(");
                assert!(crate::entries().any(|(s, ..)| s.starts_with(&wanted)), "{wanted}");
            }
        }
    }

    #[test]
    fn the_cut_depends_on_rows_alone() {
        assert_eq!((parts(0, 768), parts(1, 768), parts(5, 768)), (1, 1, 2));
        assert_eq!((parts(16_384, 768), parts(5, 2048), parts(5, 7)), (MAX_PARTS, 5, 5));
    }
}
