//! The fast f32 engine of the CPU.
