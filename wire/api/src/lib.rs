//! Gantry's CRDs, annotation keys and codecs.
