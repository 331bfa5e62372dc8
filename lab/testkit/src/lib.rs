//! Builders, cluster harness, scenario runner (a dev-dependency only).
