//! An embedded Kubernetes API server as a tower::Service.
