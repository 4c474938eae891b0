//! Command line for training, evaluating and sampling Mamba language models.
fn main() {}
