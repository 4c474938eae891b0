use super::state::{TailInputs, TailState};
use crate::elem::Elem;
use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, ensure, need};
use mamba_cuda::{Dims, View, ViewMut};
use std::ops::Range;

/// Elements that share decay and derived values: tensors start at multiples of it.
pub const GROUP: usize = 64;
const THREADS: usize = 256;
/// Elements of a thread.
const VECTOR: usize = 4;

/// One word a group of [`GROUP`] elements: whether it decays, and which group of A = −exp(A_log) it refreshes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupTable {
    words: Vec<u32>,
    neg_a_len: usize,
}

impl GroupTable {
    /// A table of an arena of `len` elements from its decaying ranges and its A_log tensors. All start at multiples of
    /// [`GROUP`]; a range may end anywhere, the gap behind it is padding. Padding takes part in every pass: zeros in all
    /// arenas stay zeros.
    ///
    /// A lies in a buffer of its own: the tensors in the order given, each from a multiple of [`GROUP`] on.
    ///
    /// # Errors
    /// [`KernelError::Size`](crate::KernelError::Size) for a range that starts elsewhere or ends past the arena.
    pub fn new(
        len: usize,
        decay: impl IntoIterator<Item = Range<usize>>,
        a_log: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<Self> {
        let mut words = vec![0u32; len.div_ceil(GROUP)];
        let groups = |range: Range<usize>| -> Result<Range<usize>> {
            let starts = range.start.is_multiple_of(GROUP);
            ensure(starts, "adamw", "range start", range.start, "a multiple of 64")?;
            let inside = range.start <= range.end && range.end <= len;
            ensure(inside, "adamw", "range end", range.end, "inside the arena")?;
            Ok(range.start / GROUP..range.end.div_ceil(GROUP))
        };
        for range in decay {
            words[groups(range)?].iter_mut().for_each(|w| *w |= 1);
        }
        let mut next = 0u32;
        for range in a_log {
            for word in &mut words[groups(range)?] {
                next += 1;
                *word |= next << 1;
            }
        }
        ensure(next < 1 << 31, "adamw", "groups of A", next as usize, "below 2^31")?;
        Ok(Self { words, neg_a_len: next as usize * GROUP })
    }

    /// The words, to upload.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Elements of the buffer of A.
    pub fn neg_a_len(&self) -> usize {
        self.neg_a_len
    }

    /// Where the `index`-th of tensors of these lengths lies in the buffer of A.
    pub fn neg_a_offset(lens: &[usize], index: usize) -> usize {
        lens.iter().take(index).map(|l| l.next_multiple_of(GROUP)).sum()
    }
}

fn dims(len: i64) -> Dims {
    let blocks = (len as u64).div_ceil((THREADS * VECTOR) as u64);
    Dims { grid: [blocks as u32, 1, 1], block: THREADS as u32, shared: 0 }
}

fn check_len(kernel: &'static str, len: i64) -> Result<usize> {
    ensure((0..1 << 40).contains(&len), kernel, "len", len as usize, "below 2^40")?;
    Ok(len as usize)
}

/// Vector accesses need it; every buffer of an arena has it.
fn aligned(kernel: &'static str, argument: &'static str, address: u64) -> Result<()> {
    ensure(address.is_multiple_of(16), kernel, argument, address as usize, "at a multiple of 16 bytes")
}

crate::kernel! {
    /// AdamW over the arena, the half-precision shadow and A in one pass; nothing where the step was not applied.
    pub struct AdamW['a, W: Elem] = "adamw", |_this| format!("<{}>", W::CPP); {
        /// `[len]`, the f32 master.
        params: ViewMut<'a, f32>,
        /// `[len]`, times the loss scale.
        grads: View<'a, f32>,
        /// `[len]`, first moments.
        m: ViewMut<'a, f32>,
        /// `[len]`, second moments.
        v: ViewMut<'a, f32>,
        /// `[len]`; absent: no shadow.
        shadow: Option<ViewMut<'a, W>>,
        /// `[GroupTable::neg_a_len]`; absent: nothing has an A.
        neg_a: Option<ViewMut<'a, f32>>,
        /// `[len / GROUP]`, from [`GroupTable::words`].
        groups: View<'a, u32>,
        /// One value.
        inputs: View<'a, TailInputs>,
        /// One value, from [`Decide`](super::Decide).
        state: View<'a, TailState>,
        /// Elements of the arena.
        len: Val<i64>,
    }
    host: {
        /// [`GroupTable::neg_a_len`].
        neg_a_len: usize,
    }
}

impl<W: Elem> Launch for AdamW<'_, W> {
    fn check(&self) -> Result<()> {
        let len = check_len(Self::NAME, self.len.0)?;
        let shadow = self.shadow.as_ref();
        let neg_a = self.neg_a.as_ref();
        for (argument, got, address) in [
            ("params", self.params.len(), self.params.ptr()),
            ("grads", self.grads.len(), self.grads.ptr()),
            ("m", self.m.len(), self.m.ptr()),
            ("v", self.v.len(), self.v.ptr()),
            ("shadow", shadow.map_or(len, ViewMut::len), shadow.map_or(0, ViewMut::ptr)),
        ] {
            need(Self::NAME, argument, got, len)?;
            aligned(Self::NAME, argument, address)?;
        }
        need(Self::NAME, "neg_a", neg_a.map_or(0, ViewMut::len), self.neg_a_len)?;
        aligned(Self::NAME, "neg_a", neg_a.map_or(0, ViewMut::ptr))?;
        need(Self::NAME, "groups", self.groups.len(), len.div_ceil(GROUP))?;
        need(Self::NAME, "inputs", self.inputs.len(), 1)?;
        need(Self::NAME, "state", self.state.len(), 1)
    }

    fn dims(&self) -> Dims {
        dims(self.len.0)
    }
}

crate::kernel! {
    /// Shadow and A from parameters that came from elsewhere (a checkpoint, another trainer).
    pub struct Refresh['a, W: Elem] = "refresh", |_this| format!("<{}>", W::CPP); {
        /// `[len]`.
        params: View<'a, f32>,
        /// `[len]`; absent: no shadow.
        shadow: Option<ViewMut<'a, W>>,
        /// `[GroupTable::neg_a_len]`; absent: nothing has an A.
        neg_a: Option<ViewMut<'a, f32>>,
        /// `[len / GROUP]`, from [`GroupTable::words`].
        groups: View<'a, u32>,
        /// Elements of the arena.
        len: Val<i64>,
    }
    host: {
        /// [`GroupTable::neg_a_len`].
        neg_a_len: usize,
    }
}

impl<W: Elem> Launch for Refresh<'_, W> {
    fn check(&self) -> Result<()> {
        let len = check_len(Self::NAME, self.len.0)?;
        need(Self::NAME, "params", self.params.len(), len)?;
        need(Self::NAME, "shadow", self.shadow.as_ref().map_or(len, ViewMut::len), len)?;
        need(Self::NAME, "neg_a", self.neg_a.as_ref().map_or(0, ViewMut::len), self.neg_a_len)?;
        need(Self::NAME, "groups", self.groups.len(), len.div_ceil(GROUP))
    }

    fn dims(&self) -> Dims {
        dims(self.len.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_decay_and_place_of_a() {
        let table = GroupTable::new(300, [0..64, 128..130], [64..70, 192..300]).unwrap();
        assert_eq!(table.words(), [1, 1 << 1, 1, 2 << 1, 3 << 1]);
        assert_eq!(table.neg_a_len(), 3 * GROUP);
        assert_eq!(GroupTable::neg_a_offset(&[6, 108], 1), 64);
        for bad in [1..64, 256..301] {
            assert!(GroupTable::new(300, [0..64, bad], []).is_err());
        }
    }
}
