//! Real Kubernetes on one machine, for tests.
