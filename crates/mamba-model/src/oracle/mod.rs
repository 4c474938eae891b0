//! The model in f64: forward, backward and loss, written for reading.
