//! Node agent: inventory, device plugin, identity, CDI writing, health.
