//! The Kubernetes adapter of the engine: watch, assume, bind, explain.
