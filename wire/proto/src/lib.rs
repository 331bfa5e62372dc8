//! Checked-in gRPC code: device plugin, registration, pod resources.
