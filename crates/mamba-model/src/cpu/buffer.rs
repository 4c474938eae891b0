use super::dims::LANES;
use bytemuck::{Pod, Zeroable};
use std::ops::{Deref, DerefMut};

/// A cache line. Vectors of a line's width that straddle two lines cost twice.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([f32; LANES]);

/// Zeroed `f32` memory that starts at a cache line.
#[derive(Debug, Clone, Default)]
pub(super) struct Buffer {
    lines: Vec<Line>,
    len: usize,
}

impl Buffer {
    pub fn zeros(len: usize) -> Self {
        let mut buffer = Self::default();
        buffer.resize(len);
        buffer
    }

    /// Sets the length; allocates only beyond the largest so far. What is added is zero.
    pub fn resize(&mut self, len: usize) {
        self.lines.resize(len.div_ceil(LANES), Line([0.0; LANES]));
        self.len = len;
    }

    /// Elements of memory held.
    pub fn capacity(&self) -> usize {
        self.lines.capacity() * LANES
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::Buffer;

    #[test]
    fn buffers_start_at_a_line() {
        for len in [1, 15, 16, 17, 100_000] {
            let mut buffer = Buffer::zeros(len);
            assert!(buffer.as_ptr().addr().is_multiple_of(64) && buffer.len() == len);
            let (at, capacity) = (buffer.as_ptr(), buffer.capacity());
            buffer.resize(len / 2);
            buffer.resize(len);
            assert!(buffer.as_ptr() == at && buffer.capacity() == capacity);
        }
    }
}
