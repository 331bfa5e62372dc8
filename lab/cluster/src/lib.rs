//! Simulated nodes: kubelet, device manager, runtime, pods.
