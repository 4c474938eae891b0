//! The optimizer's tail on the device: norms, clips, the decision, AdamW. `kernels/optim`.
//!
//! Order of a closing step: [`SpanSums`] and [`SpanClip`] (where there are control spans), [`GradSums`], [`Decide`],
//! [`AdamW`]. Nothing waits for the host: what changes from step to step is in one [`TailInputs`] that is uploaded before
//! the step, what the device decides is in one [`TailState`] that stays there and may be read back later.
//!
//! The rules are those of `mamba-optim`'s tail. For the same gradient, a block's sum, every element of an update and the
//! scale have the same bits there; block sums are added in another order, so a norm may differ in its last place.

mod adamw;
mod decide;
mod norm;
mod state;

pub use adamw::{AdamW, GROUP, GroupTable, Refresh};
pub use decide::Decide;
pub use norm::{GradSums, SpanClip, SpanPiece, SpanSums, blocks, pieces};
pub use state::{GUARD, SCALED, TailInputs, TailOutcome, TailState};
