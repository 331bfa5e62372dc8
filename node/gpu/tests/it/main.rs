//! The backend over NVML against a library that has NVML's interface, loaded as the real one is.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod faults;
mod inventory;
mod mig;
mod node;
