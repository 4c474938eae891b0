//! Integration tests of the workspace.

pub mod contract;
pub mod golden;
pub mod golden_lm;
pub mod golden_model;
pub mod random;
pub mod tolerance;
