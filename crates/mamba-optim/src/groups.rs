//! Which elements of the arena are parameters, what they are called, and which of them decay.

use core::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::OptimError;

/// One tensor of the arena.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParamSpan {
    /// Its name, for reports.
    pub name: String,
    /// Its elements in the arena.
    pub range: Range<usize>,
    /// Whether it decays while the reference no-decay groups are on.
    pub decay: bool,
}

impl ParamSpan {
    /// A named span.
    pub fn new(name: impl Into<String>, range: Range<usize>, decay: bool) -> Self {
        Self { name: name.into(), range, decay }
    }
}

/// A maximal run of neighbouring elements that are updated alike: what a kernel or loop walks over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Elements of the arena.
    pub range: Range<usize>,
    /// Whether weight decay applies.
    pub decay: bool,
}

/// The parameters of an arena, in arena order, and their decay groups.
///
/// Elements that no span covers (alignment padding) are never updated. They do count in the gradient norm,
/// which is taken over the whole arena: keep them zero.
///
/// ```
/// use mamba_optim::{ParamGroups, ParamSpan};
/// let spans = vec![ParamSpan::new("weight", 0..6, true), ParamSpan::new("bias", 6..8, false)];
/// let groups = ParamGroups::new(8, spans)?;
/// assert_eq!(groups.segments().len(), 2);
/// # Ok::<(), mamba_optim::OptimError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamGroups {
    len: usize,
    spans: Vec<ParamSpan>,
    segments: Vec<Segment>,
    reference_no_decay: bool,
}

impl ParamGroups {
    /// Groups of an arena of `len` elements. The spans may come in any order; the no-decay groups are on.
    ///
    /// # Errors
    /// [`OptimError::SpanRange`] for an empty span or one past the arena, [`OptimError::SpanOverlap`] for two
    /// that share an element.
    pub fn new(len: usize, mut spans: Vec<ParamSpan>) -> Result<Self, OptimError> {
        for span in &spans {
            check_range(&span.name, &span.range, len)?;
        }
        spans.sort_by_key(|s| s.range.start);
        for pair in spans.windows(2) {
            if let [a, b] = pair
                && b.range.start < a.range.end
            {
                return Err(OptimError::SpanOverlap {
                    first: a.name.clone(),
                    second: b.name.clone(),
                    at: b.range.start,
                });
            }
        }
        let segments = merge(&spans, true);
        Ok(Self { len, spans, segments, reference_no_decay: true })
    }

    /// One nameless group over the whole arena, all of it decaying.
    ///
    /// # Errors
    /// [`OptimError::SpanRange`] for `len` = 0.
    pub fn uniform(len: usize) -> Result<Self, OptimError> {
        Self::new(len, vec![ParamSpan::new("parameters", 0..len, true)])
    }

    /// `true`: spans marked `decay: false` do not decay, as in the reference model. `false`: all decay.
    pub fn set_reference_no_decay(&mut self, on: bool) {
        self.reference_no_decay = on;
        self.segments = merge(&self.spans, on);
    }

    /// Whether the no-decay groups are on.
    pub const fn reference_no_decay(&self) -> bool {
        self.reference_no_decay
    }

    /// Elements in the arena.
    pub const fn arena_len(&self) -> usize {
        self.len
    }

    /// The tensors in arena order.
    pub fn spans(&self) -> &[ParamSpan] {
        &self.spans
    }

    /// Runs of elements that are updated alike, in arena order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The tensor that holds an element, `None` for padding.
    pub fn span_at(&self, index: usize) -> Option<&ParamSpan> {
        let after = self.spans.partition_point(|s| s.range.start <= index);
        self.spans.get(after.checked_sub(1)?).filter(|s| s.range.contains(&index))
    }

    /// The parts of segments inside `window`, in order.
    pub(crate) fn segments_in(&self, window: Range<usize>) -> impl Iterator<Item = Segment> + '_ {
        let first = self.segments.partition_point(|s| s.range.end <= window.start);
        self.segments.iter().skip(first).take_while(move |s| s.range.start < window.end).map(move |s| {
            Segment { range: s.range.start.max(window.start)..s.range.end.min(window.end), decay: s.decay }
        })
    }
}

fn check_range(name: &str, range: &Range<usize>, len: usize) -> Result<(), OptimError> {
    if range.start < range.end && range.end <= len {
        return Ok(());
    }
    Err(OptimError::SpanRange { name: name.to_owned(), start: range.start, end: range.end, len })
}

fn merge(spans: &[ParamSpan], reference_no_decay: bool) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for span in spans {
        let decay = span.decay || !reference_no_decay;
        match segments.last_mut() {
            Some(last) if last.decay == decay && last.range.end == span.range.start => {
                last.range.end = span.range.end;
            }
            _ => segments.push(Segment { range: span.range.clone(), decay }),
        }
    }
    segments
}

/// A block of columns of a row-major matrix inside the arena: `rows` runs of `width` elements, `stride` apart.
/// A contiguous span is one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StridedSpan {
    /// First element of the first row.
    pub start: usize,
    /// Elements in a row.
    pub width: usize,
    /// Distance from the start of a row to the start of the next, at least `width`.
    pub stride: usize,
    /// Number of rows.
    pub rows: usize,
}

impl StridedSpan {
    /// The columns `columns` of a `[rows, row_len]` matrix that starts at `start`.
    pub fn columns(start: usize, rows: usize, row_len: usize, columns: Range<usize>) -> Self {
        Self {
            start: start.saturating_add(columns.start),
            width: columns.end.saturating_sub(columns.start),
            stride: row_len,
            rows,
        }
    }

    /// The elements of one row.
    pub(crate) fn row(&self, row: usize) -> Range<usize> {
        let start = self.start + row * self.stride;
        start..start + self.width
    }

    fn end(&self) -> Option<usize> {
        let last = self.rows.checked_sub(1)?.checked_mul(self.stride)?;
        self.start.checked_add(last)?.checked_add(self.width)
    }
}

impl From<Range<usize>> for StridedSpan {
    fn from(range: Range<usize>) -> Self {
        let width = range.end.saturating_sub(range.start);
        Self { start: range.start, width, stride: width, rows: 1 }
    }
}

/// The elements under the control clip: a checked list of [`StridedSpan`]s, in the order given.
///
/// In a Mamba-1 model these are the gradients of step size and decay, the only ones whose size grows with the
/// sequence length: the dt columns of `x_proj`, the weight and bias of `dt_proj`, and `A_log`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlSpans {
    spans: Vec<StridedSpan>,
}

impl ControlSpans {
    /// No control spans.
    pub const fn none() -> Self {
        Self { spans: Vec::new() }
    }

    /// Spans of an arena of `len` elements. The order of the list is the order of the sum in the norm.
    ///
    /// # Errors
    /// [`OptimError::SpanRange`] for an empty span, rows that overlap (`stride < width`) or a span past the
    /// arena; [`OptimError::SpanOverlap`] for two that share an element.
    pub fn new(len: usize, spans: Vec<StridedSpan>) -> Result<Self, OptimError> {
        for (i, span) in spans.iter().enumerate() {
            let end = span.end();
            let ok = span.width > 0
                && span.rows > 0
                && (span.rows == 1 || span.stride >= span.width)
                && end.is_some_and(|e| e <= len);
            if !ok {
                let end = end.unwrap_or(usize::MAX);
                return Err(OptimError::SpanRange { name: control_name(i), start: span.start, end, len });
            }
        }
        let mut rows: Vec<(usize, usize, usize)> = Vec::new();
        for (i, span) in spans.iter().enumerate() {
            rows.extend((0..span.rows).map(|r| span.row(r)).map(|r| (r.start, r.end, i)));
        }
        rows.sort_unstable();
        for pair in rows.windows(2) {
            if let [a, b] = pair
                && b.0 < a.1
            {
                return Err(OptimError::SpanOverlap {
                    first: control_name(a.2),
                    second: control_name(b.2),
                    at: b.0,
                });
            }
        }
        Ok(Self { spans })
    }

    /// The spans, in the order of the sum.
    pub fn spans(&self) -> &[StridedSpan] {
        &self.spans
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// `Err` unless all spans lie inside an arena of `len` elements.
    pub(crate) fn check_inside(&self, len: usize) -> Result<(), OptimError> {
        let outside = self.spans.iter().enumerate().find(|(_, s)| s.end().is_none_or(|end| end > len));
        outside.map_or(Ok(()), |(i, s)| {
            let end = s.end().unwrap_or(usize::MAX);
            Err(OptimError::SpanRange { name: control_name(i), start: s.start, end, len })
        })
    }
}

fn control_name(index: usize) -> String {
    format!("control span {index}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups() -> ParamGroups {
        let spans = vec![
            ParamSpan::new("c", 10..12, false),
            ParamSpan::new("a", 0..4, true),
            ParamSpan::new("b", 4..7, true),
            ParamSpan::new("d", 12..20, false),
        ];
        ParamGroups::new(21, spans).unwrap()
    }

    #[test]
    fn neighbours_of_one_kind_merge_and_gaps_stay() {
        let mut g = groups();
        let runs = |g: &ParamGroups| -> Vec<(usize, usize, bool)> {
            g.segments().iter().map(|s| (s.range.start, s.range.end, s.decay)).collect()
        };
        assert_eq!(runs(&g), [(0, 7, true), (10, 20, false)]);
        g.set_reference_no_decay(false);
        assert_eq!(runs(&g), [(0, 7, true), (10, 20, true)]);
        assert!(!g.reference_no_decay());
        g.set_reference_no_decay(true);
        assert_eq!(g, groups());
    }

    #[test]
    fn windows_cut_segments() {
        let g = groups();
        let cut = |w: Range<usize>| -> Vec<Range<usize>> { g.segments_in(w).map(|s| s.range).collect() };
        assert_eq!(cut(0..21), [0..7, 10..20]);
        assert_eq!(cut(6..11), [6..7, 10..11]);
        assert_eq!(cut(7..10), Vec::<Range<usize>>::new());
        assert_eq!(cut(12..16), vec![Range { start: 12, end: 16 }]);
        assert_eq!(cut(20..21), Vec::<Range<usize>>::new());
    }

    #[test]
    fn elements_are_named() {
        let g = groups();
        let name = |i: usize| g.span_at(i).map(|s| s.name.clone());
        assert_eq!(name(0).as_deref(), Some("a"));
        assert_eq!(name(6).as_deref(), Some("b"));
        assert_eq!(name(7), None);
        assert_eq!(name(19).as_deref(), Some("d"));
        assert_eq!(name(20), None);
    }

    #[test]
    fn bad_spans_are_refused_by_name() {
        let range = |r: Range<usize>| ParamGroups::new(8, vec![ParamSpan::new("x", r, true)]);
        for bad in [3..3, 7..9, 9..10, Range { start: 5, end: 2 }, 0..usize::MAX] {
            assert!(matches!(range(bad), Err(OptimError::SpanRange { name, .. }) if name == "x"));
        }
        let two = vec![ParamSpan::new("x", 4..8, true), ParamSpan::new("y", 0..5, true)];
        let want = OptimError::SpanOverlap { first: "y".into(), second: "x".into(), at: 4 };
        assert_eq!(ParamGroups::new(8, two), Err(want));
        assert!(ParamGroups::uniform(0).is_err());
    }

    #[test]
    fn control_spans_may_interleave_but_not_overlap() {
        // Columns 0..2 and 2..3 of a [4, 5] matrix at 3.
        let dt = StridedSpan::columns(3, 4, 5, 0..2);
        let next = StridedSpan::columns(3, 4, 5, 2..3);
        assert_eq!((dt.row(0), dt.row(3), dt.end()), (3..5, 18..20, Some(20)));
        let spans = ControlSpans::new(23, vec![dt, next, StridedSpan::from(20..23)]);
        // The last row of the matrix ends at 23, but only its first three columns are taken: 18..21.
        assert!(matches!(spans, Err(OptimError::SpanOverlap { at: 20, .. })));
        let spans = ControlSpans::new(23, vec![dt, next, StridedSpan::from(21..23)]).unwrap();
        assert_eq!(spans.check_inside(23), Ok(()));
        let outside = spans.check_inside(22);
        assert!(matches!(outside, Err(OptimError::SpanRange { start: 21, end: 23, .. })));
        let overlap = StridedSpan::columns(3, 4, 5, 1..2);
        assert!(matches!(ControlSpans::new(23, vec![dt, overlap]), Err(OptimError::SpanOverlap { .. })));
    }

    #[test]
    fn bad_control_spans_are_refused() {
        let good = StridedSpan { start: 0, width: 2, stride: 4, rows: 3 };
        for bad in [
            StridedSpan { width: 0, ..good },
            StridedSpan { rows: 0, ..good },
            StridedSpan { stride: 1, ..good },
            StridedSpan { start: 1, ..good },
            StridedSpan { rows: usize::MAX, ..good },
            StridedSpan { stride: usize::MAX, ..good },
            StridedSpan { start: usize::MAX, ..good },
        ] {
            assert!(matches!(ControlSpans::new(10, vec![bad]), Err(OptimError::SpanRange { .. })), "{bad:?}");
        }
        assert!(ControlSpans::new(10, vec![good]).is_ok());
    }
}
