//! In which form the client wants its answer.

use http::HeaderMap;
use http::header::ACCEPT;

use crate::Status;

/// What of each object a table's rows carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IncludeObject {
    None,
    Metadata,
    Object,
}

/// The form of objects in the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The object or list itself.
    Object,
    /// `meta.k8s.io/v1 Table`
    Table(IncludeObject),
    /// `meta.k8s.io/v1 PartialObjectMetadata[List]`
    Metadata,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Yaml,
}

/// One media range of an `Accept` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MediaRange {
    pub(crate) media_type: String,
    parameters: Vec<(String, String)>,
}

impl MediaRange {
    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.parameters.iter().find(|(n, _)| n == name).map_or("", |(_, value)| value.as_str())
    }

    pub(crate) fn is_json(&self) -> bool {
        matches!(self.media_type.as_str(), "application/json" | "application/*" | "*/*")
    }
}

/// The media ranges in the order in which the client prefers them.
#[derive(Debug, Clone)]
pub(crate) struct Accept(pub(crate) Vec<MediaRange>);

impl Accept {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut ranges: Vec<(u32, MediaRange)> = Vec::new();
        for text in headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()) {
            for range in text.split(',').map(str::trim).filter(|range| !range.is_empty()) {
                let mut parts = range.split(';').map(str::trim);
                let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
                let parameters: Vec<(String, String)> = parts
                    .filter_map(|part| part.split_once('='))
                    .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()))
                    .collect();
                let weight = parameters.iter().find(|(name, _)| name == "q").map_or(1.0, |(_, q)| {
                    q.parse::<f64>().ok().filter(|q| (0.0..=1.0).contains(q)).unwrap_or(1.0)
                });
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "within 0..=1000"
                )]
                let weight = (weight * 1000.0) as u32;
                if weight > 0 {
                    ranges.push((weight, MediaRange { media_type, parameters }));
                }
            }
        }
        // Stable: ranges of equal weight stay in the client's order.
        ranges.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
        let mut ranges: Vec<MediaRange> = ranges.into_iter().map(|(_, range)| range).collect();
        if ranges.is_empty() {
            ranges.push(MediaRange { media_type: "*/*".into(), parameters: Vec::new() });
        }
        Self(ranges)
    }

    /// The first form that the server can give. `include` is what the query's `includeObject` asks of a table's rows.
    pub(crate) fn negotiate(&self, include: Option<&str>) -> Result<(Encoding, Shape), Status> {
        for range in &self.0 {
            let encoding = match range.media_type.as_str() {
                "application/yaml" => Encoding::Yaml,
                _ if range.is_json() => Encoding::Json,
                _ => continue,
            };
            let is_meta = range.parameter("g") == "meta.k8s.io" && range.parameter("v") == "v1";
            let shape = match range.parameter("as") {
                "" => Shape::Object,
                "Table" if is_meta => Shape::Table(match include {
                    None | Some("Metadata") => IncludeObject::Metadata,
                    Some("None") => IncludeObject::None,
                    Some("Object") => IncludeObject::Object,
                    Some(other) => {
                        return Err(Status::bad_request(format!(
                            "unrecognized includeObject value: {other:?}; supported values: \"None\", \"Metadata\", \"Object\""
                        )));
                    }
                }),
                "PartialObjectMetadata" | "PartialObjectMetadataList" if is_meta => Shape::Metadata,
                _ => continue,
            };
            return Ok((encoding, shape));
        }
        Err(Status::not_acceptable(&["application/json", "application/yaml"]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiate(accept: &str) -> Result<(Encoding, Shape), Status> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        Accept::of(&headers).negotiate(None)
    }

    #[test]
    fn the_first_form_that_can_be_given_wins() {
        let table = Shape::Table(IncludeObject::Metadata);
        for (accept, expected) in [
            ("application/json", (Encoding::Json, Shape::Object)),
            ("*/*", (Encoding::Json, Shape::Object)),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                (Encoding::Json, table),
            ),
            (
                "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                (Encoding::Json, Shape::Object),
            ),
            ("application/vnd.kubernetes.protobuf,application/json", (Encoding::Json, Shape::Object)),
            ("application/json;q=0.5, application/yaml", (Encoding::Yaml, Shape::Object)),
            (
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                (Encoding::Json, Shape::Metadata),
            ),
        ] {
            assert_eq!(negotiate(accept).unwrap(), expected, "{accept}");
        }
    }

    #[test]
    fn protobuf_alone_cannot_be_given() {
        assert_eq!(negotiate("application/vnd.kubernetes.protobuf").unwrap_err().code, 406);
    }
}
