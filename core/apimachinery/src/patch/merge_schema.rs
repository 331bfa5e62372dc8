/// How a strategic merge patch treats one field: the `patchStrategy` and `patchMergeKey` of its type.
///
/// The default merges objects field by field and replaces everything else, as for a field that nobody knows.
/// `patchStrategy: retainKeys` has no place here: it tells clients to send `$retainKeys`, which is obeyed wherever it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MergeField<'a> {
    /// The type of the field's value, of a list's items or of a map's values, where that is an object; for [`MergeSchema::field`].
    pub type_name: Option<&'a str>,
    /// `patchStrategy: merge`: a list is merged, item by item with `merge_key`, as a set without one.
    pub merge: bool,
    /// The field that identifies an item of a merged list of objects.
    pub merge_key: Option<&'a str>,
}

/// What strategic merge patches need to know about types: a table of the built-in ones, for example.
pub trait MergeSchema {
    /// The field `field` of the type `type_name`; `None` when the type or the field is unknown.
    fn field(&self, type_name: &str, field: &str) -> Option<MergeField<'_>>;
}
