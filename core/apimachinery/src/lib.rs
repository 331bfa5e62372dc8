//! Kubernetes semantics on JSON values.
