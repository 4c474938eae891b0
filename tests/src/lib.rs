//! Integration tests of the workspace.

pub mod contract;
