//! From a pod in any vendor's vocabulary to one Request.
