use crate::elem::{CppType, Elem};
use crate::error::Result;
use crate::kernel::{Val, ensure};
use bytemuck::{Pod, Zeroable};
use mamba_cuda::Dims;

/// Most states of a channel.
pub const MAX_STATES: usize = 256;
/// Steps between saved states, `SCAN_CHUNK` in the kernels.
const CHUNK: usize = 16;
const THREADS: usize = 128;
/// Warps of the backward that run recurrences.
const BACKWARD_WARPS: usize = 3;
/// Steps of a segment, `SCAN_SEGMENT` in the kernels.
const SEGMENT: usize = 2048;
/// Steps of the longest sequence that stays whole, `SCAN_WHOLE` in the kernels.
const WHOLE: usize = 8192;

/// Sizes as the kernels take them; mirrors `ScanArgs` in `scan_common.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct ScanArgs {
    batch: i64,
    seq_len: i64,
    channels: i64,
    states: i64,
    ld_u: i64,
    ld_raw: i64,
    ld_z: i64,
    ld_bc: i64,
    ld_out: i64,
}

impl CppType for ScanArgs {
    const CPP: &'static str = "ScanArgs";
}

/// Sizes of a scan over `[batch, seq_len, channels]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanShape {
    /// Sequences.
    pub batch: usize,
    /// Steps.
    pub seq_len: usize,
    /// Channels.
    pub channels: usize,
    /// States of a channel, 1 to [`MAX_STATES`].
    pub states: usize,
    /// Elements between tokens of u and of the raw Δ.
    pub ld_u: usize,
    /// Elements between tokens of z and of its gradient.
    pub ld_z: usize,
    /// Elements between tokens of B and C.
    pub ld_bc: usize,
}

impl ScanShape {
    /// Lanes of a channel and states of a lane.
    fn lanes(&self) -> (usize, usize) {
        match self.states {
            0..=4 => (1, 4),
            5..=8 => (2, 4),
            9..=16 => (4, 4),
            17..=32 => (8, 4),
            33..=64 => (16, 4),
            65..=128 => (32, 4),
            _ => (32, 8),
        }
    }

    /// States with padding.
    pub fn padded_states(&self) -> usize {
        let (lanes, states) = self.lanes();
        lanes * states
    }

    /// Lanes of a channel and states of a lane in the backward, which has no tile for fewer than 16 states.
    fn backward_lanes(&self) -> (usize, usize) {
        let (lanes, states) = self.lanes();
        (lanes.max(4), states)
    }

    /// Channels of a block of the backward.
    fn backward_channels(&self) -> usize {
        let (lanes, states) = self.backward_lanes();
        BACKWARD_WARPS * (32 / lanes) * (8 / states)
    }

    /// Blocks of the backward that share the channels of a sequence.
    pub fn channel_blocks(&self) -> usize {
        self.channels.div_ceil(self.backward_channels())
    }

    fn forward_blocks(&self) -> usize {
        self.channels.div_ceil(THREADS / self.lanes().0)
    }

    /// Elements of the states that the forward saves for the backward.
    pub fn saved_len(&self) -> usize {
        self.batch * self.seq_len.div_ceil(CHUNK) * self.channels * self.padded_states()
    }

    /// Elements of the backward's partial sums for B and C.
    pub fn partial_len(&self) -> usize {
        self.channel_blocks() * self.batch * self.seq_len * 2 * self.padded_states()
    }

    /// Segments of a sequence in the forward; depends on its length alone.
    pub fn segments(&self) -> usize {
        if self.seq_len <= WHOLE { 1 } else { self.seq_len.div_ceil(SEGMENT) }
    }

    /// Elements of the states that enter the segments; 0 where sequences stay whole.
    pub fn entries_len(&self) -> usize {
        if self.segments() == 1 { 0 } else { self.segments() * self.state_len() }
    }

    /// Elements of the segments' sums of Δ; 0 where sequences stay whole.
    pub fn sums_len(&self) -> usize {
        if self.segments() == 1 { 0 } else { self.segments() * self.batch * self.channels }
    }

    /// Elements of a carried state.
    pub fn state_len(&self) -> usize {
        self.batch * self.channels * self.states
    }

    /// The kernels' argument; the output and its gradient are dense.
    pub fn args(&self) -> Val<ScanArgs> {
        Val(ScanArgs {
            batch: self.batch as i64,
            seq_len: self.seq_len as i64,
            channels: self.channels as i64,
            states: self.states as i64,
            ld_u: self.ld_u as i64,
            ld_raw: self.ld_u as i64,
            ld_z: self.ld_z as i64,
            ld_bc: self.ld_bc as i64,
            ld_out: self.channels as i64,
        })
    }

    /// Elements of a matrix of `cols` columns whose tokens lie `ld` apart.
    pub(super) fn extent(&self, ld: usize, cols: usize) -> usize {
        let tokens = self.batch * self.seq_len;
        if tokens == 0 { 0 } else { (tokens - 1) * ld + cols }
    }

    pub(super) fn check(&self, kernel: &'static str) -> Result<()> {
        ensure((1..=MAX_STATES).contains(&self.states), kernel, "states", self.states, "1 to 256")?;
        ensure(self.ld_u >= self.channels, kernel, "ld_u", self.ld_u, "at least the number of channels")?;
        ensure(self.ld_z >= self.channels, kernel, "ld_z", self.ld_z, "at least the number of channels")?;
        ensure(self.ld_bc >= self.states, kernel, "ld_bc", self.ld_bc, "at least the number of states")?;
        ensure(
            self.batch * (self.segments() * self.forward_blocks()).max(self.channel_blocks()) < 1 << 31,
            kernel,
            "batch",
            self.batch,
            "2^31 blocks at most",
        )?;
        ensure(self.seq_len < 1 << 30, kernel, "seq_len", self.seq_len, "2^30 steps at most")
    }

    /// Template arguments of the forward.
    pub(super) fn forward_template<T: Elem>(&self) -> String {
        let (lanes, states) = self.lanes();
        format!("<{}, {lanes}, {states}>", T::CPP)
    }

    /// Template arguments of the backward; vectors where every access is whole and aligned, B and C by four states.
    pub(super) fn backward_template<T: Elem>(&self, addresses: &[u64], groups: [u64; 2]) -> String {
        let (lanes, states) = self.backward_lanes();
        let group = 4 * size_of::<T>() as u64;
        let whole = self.states.is_multiple_of(4) && self.ld_bc.is_multiple_of(4);
        let vector = self.vectors::<T>(addresses) && whole && groups.iter().all(|a| a.is_multiple_of(group));
        format!("<{}, {lanes}, {states}, {vector}>", T::CPP)
    }

    fn vectors<T: Elem>(&self, addresses: &[u64]) -> bool {
        let bytes = |ld: usize| (ld * size_of::<T>()).is_multiple_of(16);
        let rows = bytes(self.ld_u) && bytes(self.ld_z) && bytes(self.channels);
        rows && self.channels.is_multiple_of(8) && addresses.iter().all(|a| a.is_multiple_of(16))
    }

    /// Launch of the forward over so many segments: consumers and producers, `BUFFERS` times `sizeof(ForwardBuffer)`.
    pub(super) fn forward_dims(&self, segments: usize) -> Dims {
        let (lanes, per_lane) = self.lanes();
        let (padded, channels, parts) =
            (lanes * per_lane, THREADS / lanes, if lanes <= 4 { lanes } else { 1 });
        let steps = match (lanes, per_lane) {
            (1 | 2, _) => 4 * lanes,
            (_, 8) => 8,
            _ => 16,
        };
        let floats = channels * (steps * (2 + parts) + 2) + 2 * steps * padded + 32;
        let one = self.grid(self.forward_blocks(), 4 * (4 * floats).next_multiple_of(128));
        Dims { grid: [one.grid[0] * segments as u32, 1, 1], block: 2 * THREADS as u32, ..one }
    }

    pub(super) fn backward_dims(&self) -> Dims {
        self.grid(self.channel_blocks(), self.backward_shared())
    }

    fn grid(&self, blocks: usize, shared: usize) -> Dims {
        let blocks = if self.seq_len == 0 { 0 } else { self.batch * blocks };
        Dims { grid: [blocks as u32, 1, 1], block: THREADS as u32, shared: shared as u32 }
    }

    /// Dynamic shared memory of the backward, `sizeof(BackwardShared)`.
    fn backward_shared(&self) -> usize {
        let (lanes, per_lane) = self.backward_lanes();
        let (padded, channels, half) = (lanes * per_lane, self.backward_channels(), CHUNK / 2);
        let (rows, pair) = (32 / lanes, 8 / per_lane);
        let (roles, item) = (rows.min(4), [4, 2, 1][usize::from(channels % 4 != 0) + channels % 2]);
        let (groups, lane_parts) = (channels / item, lanes / pair);
        let input = 2 * (channels + 8) + 5 * channels + 2 * padded * roles;
        let y = groups * (item * lane_parts * 2 + 8) + 4;
        let q = groups * item * lane_parts + 4;
        let sums = 2 * (BACKWARD_WARPS * rows / roles) * (padded + 8);
        half * 4 * (4 * input + 2 * (y + q + sums))
    }
}
