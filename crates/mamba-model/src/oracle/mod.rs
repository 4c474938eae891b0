//! The model in f64: forward, backward and loss, written for reading. The truth of every test.
//!
//! [`ops`], [`conv`] and [`scan`] hold the single operations with their adjoints, [`Oracle`] the whole model. Everything is
//! row-major, tokens outermost; an adjoint returns fresh gradients, it never adds to a caller's.

pub mod conv;
mod loss;
mod model;
pub mod ops;
pub mod scan;

pub use loss::{CrossEntropy, cross_entropy};
pub use model::{Gradients, Oracle, Trace};
