//! The fast f32 engine of the CPU.
//!
//! Code map, in the data's order:
//! - [`CpuModel`] (`model`): training, with checks and the loss; [`CpuDecoder`] (`decode`): one token at a time;
//! - `engine`: buffers and the order of a pass; `block_fwd`, `block_bwd`: the phases of a block;
//! - `gemm`, `norm`, `conv`, `scan_fwd`, `scan_bwd`, `loss`, `math`: the loops, vectorised for the running CPU;
//! - `derived`: weights as the loops want them (packed panels, A · log2 e, transposed taps);
//! - `dims`, `pool`, `profile`: sizes, threads and their scratch, time per phase;
//! - [`ops`]: single operations on plain slices.
//!
//! **Bits.** Every sum has an order that shapes alone fix: the reduction of a matrix product runs over k one after
//! the other in fused multiply-adds, a scan step over its states in order, a gradient over its tokens in order, and
//! partial sums of row chunks, channel groups and batch rows are folded in order. So results do not depend on the
//! number of threads, nor on the vector width of the machine as long as it has fused multiply-adds; a forward row
//! does not depend on the batch or on how its tokens are cut into windows; recomputed activations equal kept ones.
//!
//! **Layout.** What is as wide as `d_inner` lies in tiles of 64 tokens × 64 channels, `[row task, group, 64, 64]`, so a
//! task over rows owns one piece of memory and a task over channels reads whole lines. What the scan writes lies by
//! group, `[group, tokens, 64]`, one piece a (batch row, group) task. Channels past `d_inner` have zero weights and
//! stay zero.
//!
//! **Parts.** The batch is cut into parts of whole rows, about a thousand tokens each. A part goes through all blocks
//! before the next one starts, so that what passes between phases stays in the caches.

mod block_bwd;
mod block_fwd;
mod buffer;
mod ceilings;
mod conv;
mod decode;
mod derived;
mod dims;
mod engine;
mod gemm;
#[cfg(test)]
mod isa_tests;
mod loss;
mod math;
mod model;
mod norm;
pub mod ops;
mod pool;
mod profile;
mod scan_bwd;
mod scan_fwd;

pub use ceilings::Ceilings;
pub use decode::CpuDecoder;
pub use model::{CpuModel, CpuOptions};
pub use pool::MAX_THREADS;
pub use profile::{PHASES, Phase, PhaseTimes};
