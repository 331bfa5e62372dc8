//! Queries and view-models shared by every interface.
