//! The nouns of the domain: GPUs, nodes, requests, assignments, reasons.
