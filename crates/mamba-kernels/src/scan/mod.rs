//! Selective scan with softplus, skip and gate: `kernels/scan`.

mod backward;
mod fold;
mod forward;
mod segments;
mod shape;

pub use backward::ScanBackward;
pub use fold::FoldStates;
pub use forward::ScanForward;
pub use segments::{SegmentEnds, SegmentEntries, Segments};
pub use shape::{MAX_STATES, ScanArgs, ScanShape};
