//! Kubernetes quantities (exact), bytes, percent, durations.
