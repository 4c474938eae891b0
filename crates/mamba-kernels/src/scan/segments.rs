//! Long sequences are scanned by segments: each one's end from zero, then the states that enter them, then the scan.

use super::shape::{ScanArgs, ScanShape};
use crate::elem::Elem;
use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, need};
use crate::registry::Kernels;
use mamba_cuda::{Dims, View, ViewMut};
use std::marker::PhantomData;

crate::kernel! {
    /// State after each segment but the last, from zero, and the segment's sum of Δ.
    pub struct SegmentEnds['a, T: Elem] = "scan_segment_ends", |this| {
        this.shape.forward_template::<T>()
    }; {
        /// `[batch, seq_len, channels]`, tokens `ld_u` apart.
        u: View<'a, T>,
        /// Δ before bias and softplus, as u.
        raw: View<'a, T>,
        /// `[batch, seq_len, states]`, tokens `ld_bc` apart.
        b: View<'a, T>,
        /// A `[channels, states]`, negative.
        neg_a: View<'a, f32>,
        /// `[channels]`.
        dt_bias: View<'a, f32>,
        /// `[batch, seq_len]`: 1 at the first token of a document.
        reset: Option<View<'a, u8>>,
        /// `ScanShape::entries_len` elements.
        ends: ViewMut<'a, f32>,
        /// `ScanShape::sums_len` elements; negative where a document begins.
        sums: ViewMut<'a, f32>,
        /// Sizes.
        args: Val<ScanArgs>,
    }
    host: {
        /// Sizes; `segments` is more than 1.
        shape: ScanShape,
    }
}

impl<T: Elem> Launch for SegmentEnds<'_, T> {
    fn check(&self) -> Result<()> {
        let s = &self.shape;
        s.check(Self::NAME)?;
        let tokens = s.batch * s.seq_len;
        need(Self::NAME, "u", self.u.len(), s.extent(s.ld_u, s.channels))?;
        need(Self::NAME, "raw", self.raw.len(), s.extent(s.ld_u, s.channels))?;
        need(Self::NAME, "b", self.b.len(), s.extent(s.ld_bc, s.states))?;
        need(Self::NAME, "neg_a", self.neg_a.len(), s.channels * s.states)?;
        need(Self::NAME, "dt_bias", self.dt_bias.len(), s.channels)?;
        need(Self::NAME, "reset", self.reset.map_or(tokens, |r| r.len()), tokens)?;
        need(Self::NAME, "ends", self.ends.len(), s.entries_len())?;
        need(Self::NAME, "sums", self.sums.len(), s.sums_len())
    }

    fn dims(&self) -> Dims {
        self.shape.forward_dims(self.shape.segments() - 1)
    }
}

crate::kernel! {
    /// The states that enter the segments, in order.
    pub struct SegmentEntries['a] = "scan_segment_entries", |_this| ""; {
        /// A `[channels, states]`, negative.
        neg_a: View<'a, f32>,
        /// What [`SegmentEnds`] left.
        sums: View<'a, f32>,
        /// `[batch, channels, states]`; absent: zeros.
        h0: Option<View<'a, f32>>,
        /// What [`SegmentEnds`] left; becomes `[batch, segments, channels, states]`, what enters each.
        ends: ViewMut<'a, f32>,
        /// Sequences.
        batch: Val<i64>,
        /// `ScanShape::segments`.
        segments: Val<i64>,
        /// Channels.
        channels: Val<i64>,
        /// States.
        states: Val<i64>,
    }
    host: {
        /// Sizes.
        shape: ScanShape,
    }
}

impl Launch for SegmentEntries<'_> {
    fn check(&self) -> Result<()> {
        let s = &self.shape;
        need(Self::NAME, "neg_a", self.neg_a.len(), s.channels * s.states)?;
        need(Self::NAME, "sums", self.sums.len(), s.sums_len())?;
        need(Self::NAME, "h0", self.h0.map_or(s.state_len(), |h| h.len()), s.state_len())?;
        need(Self::NAME, "ends", self.ends.len(), s.entries_len())
    }

    fn dims(&self) -> Dims {
        let cells = self.shape.state_len() as u64;
        Dims { grid: [cells.div_ceil(256).min(1 << 20) as u32, 1, 1], block: 256, shared: 0 }
    }
}

/// Work space and arguments of a scan by segments.
#[derive(Debug)]
pub struct Segments<'a, T: Elem> {
    /// As [`SegmentEnds::u`].
    pub u: View<'a, T>,
    /// As [`SegmentEnds::raw`].
    pub raw: View<'a, T>,
    /// As [`SegmentEnds::b`].
    pub b: View<'a, T>,
    /// As [`SegmentEnds::neg_a`].
    pub neg_a: View<'a, f32>,
    /// As [`SegmentEnds::dt_bias`].
    pub dt_bias: View<'a, f32>,
    /// As [`SegmentEnds::reset`].
    pub reset: Option<View<'a, u8>>,
    /// The carried state; absent: zeros.
    pub h0: Option<View<'a, f32>>,
    /// `ScanShape::entries_len` elements: gets what enters each segment.
    pub entries: ViewMut<'a, f32>,
    /// `ScanShape::sums_len` elements.
    pub sums: ViewMut<'a, f32>,
    /// Sizes.
    pub shape: ScanShape,
}

impl<T: Elem> Segments<'_, T> {
    /// Both passes, where the shape asks for segments; else nothing.
    ///
    /// # Errors
    /// Those of [`Launch::launch`].
    pub fn launch(mut self, kernels: &Kernels) -> Result<()> {
        let shape = self.shape;
        if shape.segments() == 1 {
            return Ok(());
        }
        SegmentEnds {
            u: self.u,
            raw: self.raw,
            b: self.b,
            neg_a: self.neg_a,
            dt_bias: self.dt_bias,
            reset: self.reset,
            ends: self.entries.reborrow(),
            sums: self.sums.reborrow(),
            args: shape.args(),
            shape,
            marker: PhantomData,
        }
        .launch(kernels)?;
        SegmentEntries {
            neg_a: self.neg_a,
            sums: self.sums.as_view(),
            h0: self.h0,
            ends: self.entries,
            batch: Val(shape.batch as i64),
            segments: Val(shape.segments() as i64),
            channels: Val(shape.channels as i64),
            states: Val(shape.states as i64),
            shape,
            marker: PhantomData,
        }
        .launch(kernels)
    }
}
