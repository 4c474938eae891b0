//! Developer tasks of this workspace: PTX, checks, benchmarks.
fn main() {}
