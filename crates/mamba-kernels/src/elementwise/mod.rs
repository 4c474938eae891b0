//! Casts, sums, factors and column sums: `kernels/elementwise`.

use crate::elem::Elem;
use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, ensure, need};
use mamba_cuda::{Dims, View, ViewMut};

const THREADS: usize = 256;
/// Elements a thread takes at a time.
const VECTOR: usize = 4;
/// Parts of a column sum, at most.
const MAX_PARTS: usize = 64;

/// Blocks for `len` elements; the kernels stride over the rest.
fn dims(len: i64) -> Dims {
    let blocks = (len as u64).div_ceil((THREADS * VECTOR) as u64).min(1 << 20);
    Dims { grid: [blocks as u32, 1, 1], block: THREADS as u32, shared: 0 }
}

fn positive(kernel: &'static str, len: i64) -> Result<usize> {
    ensure(len >= 0, kernel, "len", len as usize, "at least 0")?;
    Ok(len as usize)
}

crate::kernel! {
    /// out = input, rounded to nearest even. One of the types is f32, the other a half.
    pub struct Cast['a, I: Elem, O: Elem] = "cast", |_this| format!("<{}, {}>", I::CPP, O::CPP); {
        /// `[len]`.
        input: View<'a, I>,
        /// `[len]`.
        out: ViewMut<'a, O>,
        /// Elements.
        len: Val<i64>,
    }
}

impl<I: Elem, O: Elem> Launch for Cast<'_, I, O> {
    fn check(&self) -> Result<()> {
        let len = positive(Self::NAME, self.len.0)?;
        need(Self::NAME, "input", self.input.len(), len)?;
        need(Self::NAME, "out", self.out.len(), len)
    }

    fn dims(&self) -> Dims {
        dims(self.len.0)
    }
}

crate::kernel! {
    /// out += input, summed in f32.
    pub struct Add['a, T: Elem] = "add", |_this| format!("<{}>", T::CPP); {
        /// `[len]`.
        input: View<'a, T>,
        /// `[len]`.
        out: ViewMut<'a, T>,
        /// Elements.
        len: Val<i64>,
    }
}

impl<T: Elem> Launch for Add<'_, T> {
    fn check(&self) -> Result<()> {
        let len = positive(Self::NAME, self.len.0)?;
        need(Self::NAME, "input", self.input.len(), len)?;
        need(Self::NAME, "out", self.out.len(), len)
    }

    fn dims(&self) -> Dims {
        dims(self.len.0)
    }
}

crate::kernel! {
    /// out = input · factor, or input / factor. The factor is read on the device, so a captured step follows it.
    pub struct Scale['a, T: Elem] = "scale", |_this| format!("<{}>", T::CPP); {
        /// `[len]`.
        input: View<'a, T>,
        /// One value.
        factor: View<'a, f32>,
        /// `[len]`.
        out: ViewMut<'a, f32>,
        /// 1 to divide, 0 to multiply.
        divide: Val<i32>,
        /// Elements.
        len: Val<i64>,
    }
}

impl<T: Elem> Launch for Scale<'_, T> {
    fn check(&self) -> Result<()> {
        let len = positive(Self::NAME, self.len.0)?;
        need(Self::NAME, "input", self.input.len(), len)?;
        need(Self::NAME, "factor", self.factor.len(), 1)?;
        need(Self::NAME, "out", self.out.len(), len)
    }

    fn dims(&self) -> Dims {
        dims(self.len.0)
    }
}

crate::kernel! {
    /// out = value everywhere.
    pub struct Fill['a, T: Elem] = "fill", |_this| format!("<{}>", T::CPP); {
        /// `[len]`.
        out: ViewMut<'a, T>,
        /// The value, rounded to the type.
        value: Val<f32>,
        /// Elements.
        len: Val<i64>,
    }
}

impl<T: Elem> Launch for Fill<'_, T> {
    fn check(&self) -> Result<()> {
        need(Self::NAME, "out", self.out.len(), positive(Self::NAME, self.len.0)?)
    }

    fn dims(&self) -> Dims {
        dims(self.len.0)
    }
}

/// Elements of `[rows, cols]` with rows `ld` apart.
fn cells(kernel: &'static str, rows: i64, cols: i32, ld: i64) -> Result<usize> {
    ensure(rows >= 0, kernel, "rows", rows as usize, "at least 0")?;
    ensure(cols > 0, kernel, "cols", cols as usize, "at least 1")?;
    ensure(ld >= i64::from(cols), kernel, "ld", ld as usize, "at least cols")?;
    Ok(if rows == 0 { 0 } else { (rows as usize - 1) * ld as usize + cols as usize })
}

crate::kernel! {
    /// x`[row, c]` += bias`[c]`, summed in f32.
    pub struct AddBias['a, T: Elem] = "add_bias", |_this| format!("<{}>", T::CPP); {
        /// `[rows, cols]`, rows `ld` apart.
        x: ViewMut<'a, T>,
        /// `[cols]`.
        bias: View<'a, f32>,
        /// Number of rows.
        rows: Val<i64>,
        /// Number of columns.
        cols: Val<i32>,
        /// Elements between rows.
        ld: Val<i64>,
    }
}

impl<T: Elem> Launch for AddBias<'_, T> {
    fn check(&self) -> Result<()> {
        need(Self::NAME, "x", self.x.len(), cells(Self::NAME, self.rows.0, self.cols.0, self.ld.0)?)?;
        need(Self::NAME, "bias", self.bias.len(), self.cols.0 as usize)
    }

    fn dims(&self) -> Dims {
        dims(self.rows.0 * i64::from(self.cols.0))
    }
}

crate::kernel! {
    /// Sums of the columns, in [`ColumnSums::parts`] parts to be folded by [`FoldParts`](crate::fold::FoldParts): the
    /// gradient of a bias.
    pub struct ColumnSums['a, T: Elem] = "column_sums", |_this| format!("<{}>", T::CPP); {
        /// `[rows, cols]`, rows `ld` apart.
        x: View<'a, T>,
        /// `[parts, cols]`.
        partial: ViewMut<'a, f32>,
        /// Number of rows.
        rows: Val<i64>,
        /// Number of columns.
        cols: Val<i32>,
        /// Elements between rows.
        ld: Val<i64>,
        /// As [`ColumnSums::rows_per_part`] gives it.
        rows_per_part: Val<i64>,
    }
}

impl<T: Elem> ColumnSums<'_, T> {
    /// Rows of a part; depends on the number of rows only.
    pub fn rows_per_part(rows: usize) -> usize {
        rows.div_ceil(MAX_PARTS).max(64)
    }

    /// Number of parts.
    pub fn parts(rows: usize) -> usize {
        rows.div_ceil(Self::rows_per_part(rows)).max(1)
    }
}

impl<T: Elem> Launch for ColumnSums<'_, T> {
    fn check(&self) -> Result<()> {
        let (rows, cols) = (self.rows.0 as usize, self.cols.0 as usize);
        need(Self::NAME, "x", self.x.len(), cells(Self::NAME, self.rows.0, self.cols.0, self.ld.0)?)?;
        let per = self.rows_per_part.0;
        let right = per == Self::rows_per_part(rows) as i64;
        ensure(right, Self::NAME, "rows_per_part", per as usize, "what ColumnSums::rows_per_part gives")?;
        need(Self::NAME, "partial", self.partial.len(), Self::parts(rows) * cols)
    }

    fn dims(&self) -> Dims {
        let columns = (self.cols.0 as u32).div_ceil(32);
        Dims {
            grid: [columns, Self::parts(self.rows.0 as usize) as u32, 1],
            block: THREADS as u32,
            shared: 0,
        }
    }
}
