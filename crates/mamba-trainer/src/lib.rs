//! Trains Mamba models: one contract for every device and precision.
