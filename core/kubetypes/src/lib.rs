//! Kubernetes' built-in types as one table: fields, numbers, merge keys.
