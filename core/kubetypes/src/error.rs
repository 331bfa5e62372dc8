use thiserror::Error;

/// What can be wrong with the table or with bytes to decode.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A line of the table cannot be read.
    #[error("line {line} of the type table of {group}: {what} in \"{text}\"")]
    Table {
        /// Group-version of the table, or `?` before its `group` line.
        group: String,
        /// Line, counted from 1.
        line: usize,
        /// The rule that the line breaks.
        what: &'static str,
        /// The line.
        text: String,
    },
    /// A field refers to a type that no table has.
    #[error("type {from_type} has a field {field} of type {missing}, which no table has")]
    MissingType {
        /// Type with the field.
        from_type: String,
        /// Name of the field.
        field: String,
        /// Name of the absent type.
        missing: String,
    },
    /// The bytes do not begin with Kubernetes' protobuf magic.
    #[error("not Kubernetes protobuf: the first four bytes must be 6b 38 73 00 (\"k8s\\0\")")]
    NotKubernetesProtobuf,
    /// The envelope names a kind that is not built in.
    #[error(
        "no protobuf form is known of kind \"{kind}\" in version \"{api_version}\": send application/json"
    )]
    UnknownKind {
        /// `apiVersion` of the envelope.
        api_version: String,
        /// `kind` of the envelope.
        kind: String,
    },
    /// The envelope says that its content is in a form that is not supported.
    #[error(
        "content type \"{content_type}\" with encoding \"{encoding}\" inside a protobuf envelope is not supported: send application/json"
    )]
    UnsupportedContent {
        /// `contentType` of the envelope.
        content_type: String,
        /// `contentEncoding` of the envelope.
        encoding: String,
    },
    /// The bytes are not a well-formed message.
    #[error("malformed protobuf at byte {offset}: {what}")]
    Malformed {
        /// Offset from the start of the body, in bytes.
        offset: usize,
        /// The rule that the bytes break.
        what: &'static str,
    },
    /// The body is longer than the API server takes.
    #[error("body of {length} bytes is longer than the limit of {limit} bytes")]
    TooLong {
        /// Length of the body, in bytes.
        length: usize,
        /// Most bytes that are taken.
        limit: usize,
    },
}
