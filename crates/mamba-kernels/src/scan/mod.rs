//! Selective scan with softplus, skip and gate: `kernels/scan`.

mod backward;
mod fold;
mod forward;
mod shape;

pub use backward::ScanBackward;
pub use fold::FoldStates;
pub use forward::ScanForward;
pub use shape::{MAX_STATES, ScanArgs, ScanShape};
