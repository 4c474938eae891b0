//! CUDA kernels of Mamba training as PTX, with typed, checked launchers.
