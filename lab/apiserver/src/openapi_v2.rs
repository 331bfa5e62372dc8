//! As much of OpenAPI v2 as kubectl before 1.29 insists on: that objects can be patched with `fieldValidation`.
//!
//! Those versions read the document before anything else and leave validation to the server only if it has that
//! parameter. Everything else they know from version 3 or from their own types. The form is protobuf, the message
//! `openapi.v2.Document` of `github.com/google/gnostic-models`.

use http::{HeaderMap, Response};
use serde_json::json;

use crate::Status;
use crate::http::{Accept, Body, full, response};
use crate::registry::{Resource, Served};

/// How clients ask for this form.
const ASKED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// How it is named in the answer: no media type may have the other's `@`, and some clients look.
const ANSWERED: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// `/openapi/v2`
pub(crate) fn answer(served: &Served, headers: &HeaderMap) -> Result<Response<Body>, Status> {
    if Accept::of(headers).0.iter().all(|range| range.media_type != ASKED) {
        return Err(Status::unknown_path());
    }
    Ok(response(200, ANSWERED, full(document(served))))
}

fn document(served: &Served) -> Vec<u8> {
    let mut paths = Vec::new();
    for resource in served.all().filter(|resource| resource.verbs.contains(&"patch")) {
        let item = message(PATH_ITEM_PATCH, &patch(resource));
        let named = [text(NAMED_NAME, &path(resource)), message(NAMED_VALUE, &item)].concat();
        paths.extend(message(PATHS_PATH, &named));
    }
    [text(DOCUMENT_SWAGGER, "2.0"), message(DOCUMENT_PATHS, &paths)].concat()
}

// Numbers of the fields, as `openapiv2/OpenAPIv2.proto` gives them.
const DOCUMENT_SWAGGER: u8 = 1;
const DOCUMENT_PATHS: u8 = 8;
const PATHS_PATH: u8 = 2;
const NAMED_NAME: u8 = 1;
const NAMED_VALUE: u8 = 2;
const PATH_ITEM_PATCH: u8 = 8;
const OPERATION_PARAMETERS: u8 = 8;
const OPERATION_VENDOR_EXTENSION: u8 = 13;
const PARAMETERS_ITEM_PARAMETER: u8 = 1;
const PARAMETER_NON_BODY: u8 = 2;
const NON_BODY_QUERY: u8 = 3;
const QUERY_IN: u8 = 2;
const QUERY_NAME: u8 = 4;
const QUERY_TYPE: u8 = 6;
const ANY_YAML: u8 = 2;

fn patch(resource: &Resource) -> Vec<u8> {
    let query =
        [text(QUERY_IN, "query"), text(QUERY_NAME, "fieldValidation"), text(QUERY_TYPE, "string")].concat();
    let parameter = message(PARAMETER_NON_BODY, &message(NON_BODY_QUERY, &query));
    let kind = json!({"group": resource.group, "version": resource.version, "kind": resource.kind});
    let extension = [
        text(NAMED_NAME, "x-kubernetes-group-version-kind"),
        message(NAMED_VALUE, &text(ANY_YAML, &kind.to_string())),
    ]
    .concat();
    [
        message(OPERATION_PARAMETERS, &message(PARAMETERS_ITEM_PARAMETER, &parameter)),
        message(OPERATION_VENDOR_EXTENSION, &extension),
    ]
    .concat()
}

fn path(resource: &Resource) -> String {
    let root = if resource.group.is_empty() { "api" } else { "apis" };
    let scope = if resource.namespaced { "namespaces/{namespace}/" } else { "" };
    format!("/{root}/{}/{scope}{}/{{name}}", resource.api_version(), resource.plural)
}

fn text(number: u8, value: &str) -> Vec<u8> {
    message(number, value.as_bytes())
}

/// A length-delimited field.
fn message(number: u8, content: &[u8]) -> Vec<u8> {
    const LENGTH_DELIMITED: u8 = 2;
    let mut out = vec![number << 3 | LENGTH_DELIMITED];
    let mut length = content.len();
    while length >= 0x80 {
        out.push(u8::try_from(length & 0x7f).expect("invariant: seven bits") | 0x80);
        length >>= 7;
    }
    out.push(u8::try_from(length).expect("invariant: below 0x80"));
    out.extend_from_slice(content);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;

    /// The contents of the fields of a message that have this number.
    fn fields(mut bytes: &[u8], wanted: u8) -> Vec<&[u8]> {
        let mut found = Vec::new();
        while let Some((tag, rest)) = bytes.split_first() {
            let (mut length, mut shift, mut rest) = (0, 0, rest);
            while let Some((byte, after)) = rest.split_first() {
                length |= usize::from(byte & 0x7f) << shift;
                shift += 7;
                rest = after;
                if byte & 0x80 == 0 {
                    break;
                }
            }
            let (content, after) = rest.split_at(length);
            if *tag >> 3 == wanted {
                found.push(content);
            }
            bytes = after;
        }
        found
    }

    fn only(bytes: &[u8], number: u8) -> &[u8] {
        let [one] = fields(bytes, number)[..] else { panic!("field {number} is not there once") };
        one
    }

    #[test]
    fn every_resource_that_can_be_patched_offers_field_validation() {
        let served = Registry::new().served();
        let document = document(&served);
        assert_eq!(only(&document, DOCUMENT_SWAGGER), b"2.0");
        let paths = fields(only(&document, DOCUMENT_PATHS), PATHS_PATH);
        assert_eq!(paths.len(), served.all().filter(|r| r.verbs.contains(&"patch")).count());
        for path in &paths {
            let patch = only(only(path, NAMED_VALUE), PATH_ITEM_PATCH);
            let parameter = only(only(patch, OPERATION_PARAMETERS), PARAMETERS_ITEM_PARAMETER);
            let query = only(only(parameter, PARAMETER_NON_BODY), NON_BODY_QUERY);
            assert_eq!(only(query, QUERY_NAME), b"fieldValidation");
        }
        let pods = paths
            .iter()
            .find(|path| only(path, NAMED_NAME).ends_with(b"/pods/{name}"))
            .expect("pods are there");
        let extension = only(only(only(pods, NAMED_VALUE), PATH_ITEM_PATCH), OPERATION_VENDOR_EXTENSION);
        assert_eq!(
            only(only(extension, NAMED_VALUE), ANY_YAML),
            br#"{"group":"","kind":"Pod","version":"v1"}"#
        );
    }
}
