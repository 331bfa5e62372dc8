//! Container Device Interface: types, validation, cache, edits on JSON values.
