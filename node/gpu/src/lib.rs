//! GpuBackend and the simulated backend.
