//! What requests are read from, with the properties that it keeps, for the targets in `fuzz/`.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use serde_json::Value;

use super::body::{self, decode as decode_body};
use super::negotiate::{Accept, Encoding, Shape};
use super::path::{RequestPath, ResourcePath};
use super::query::{Query, decode};

/// A path that is written anew from its parts has the same parts.
pub fn path(data: &[u8]) {
    let path = RequestPath::parse(&String::from_utf8_lossy(data));
    if let RequestPath::Resource(parts) = &path {
        let ResourcePath { group, version, namespace, resource, name, subresource } = parts;
        let mut again =
            if group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", escaped(group)) };
        let namespaces = if namespace.is_empty() { "" } else { "namespaces" };
        for part in [version, namespaces, namespace, resource, name, subresource] {
            if !part.is_empty() {
                again.push('/');
                again.push_str(&escaped(part));
            }
        }
        assert_eq!(RequestPath::parse(&again), path, "{again}");
    }
}

/// Percent encoding is undone, and what a query says once and first is what it says.
pub fn query(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for plus_is_space in [false, true] {
        assert_eq!(decode(&escaped(&text), plus_is_space), text);
    }
    let query = Query::parse(&text);
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let name = decode(pair.split('=').next().unwrap_or_default(), true);
        let first = query.all(&name).next();
        assert!(first.is_some(), "{name}");
        assert_eq!(query.get(&name), first.filter(|value| !value.is_empty()), "{name}");
        query.flag(&name);
    }
}

/// A form is agreed on or the refusal tells what there is.
pub fn accept(data: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(data) else { return };
    let accept = Accept::of(&HeaderMap::from_iter([(ACCEPT, value)]));
    assert!(!accept.0.is_empty());
    for include in [None, Some("None"), Some("else")] {
        match accept.negotiate(include) {
            Ok((_, shape)) => assert!(include != Some("else") || !matches!(shape, Shape::Table(_))),
            Err(status) => assert!(matches!(status.code, 400 | 406) && !status.message.is_empty()),
        }
    }
}

/// JSON is read as any reader reads it, and what repeats is named.
pub fn json(data: &[u8]) {
    let plain = serde_json::from_slice::<Value>(data);
    match body_of("application/json", data) {
        Some(decoded) => {
            assert_eq!(plain.ok(), Some(decoded.object.clone()));
            let text = decoded.object.to_string();
            let again = body_of("application/json", text.as_bytes()).expect("what is written is JSON");
            assert_eq!(again.object, decoded.object);
            assert!(again.duplicates.is_empty());
            assert!(decoded.duplicates.iter().all(|field| field.len() <= 2 * data.len()));
        }
        None => assert!(plain.is_err(), "refused although it is JSON"),
    }
}

/// YAML that was read is written as YAML, and as JSON, that says the same.
pub fn yaml(data: &[u8]) {
    let Some(decoded) = body_of("application/yaml", data) else { return };
    let json = decoded.object.to_string();
    let read = body_of("application/json", json.as_bytes()).expect("what is written is JSON");
    assert_eq!(read.object, decoded.object);
    let yaml = body::to_yaml(&decoded.object).expect("every JSON value can be written as YAML");
    let again =
        body::parse_yaml(yaml.as_bytes()).unwrap_or_else(|status| panic!("{}\n{yaml}", status.message));
    assert_eq!(again, decoded.object, "{yaml}");
    assert!(body::encoded(200, Encoding::Yaml, json.into()).is_ok());
}

fn body_of(content_type: &'static str, data: &[u8]) -> Option<body::Decoded> {
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
    match decode_body(&headers, data) {
        Ok(decoded) => Some(decoded),
        Err(status) => {
            assert!(status.code == 400 && !status.message.is_empty());
            None
        }
    }
}

/// Percent encoding of every byte that is no letter or digit.
fn escaped(text: &str) -> String {
    let escape = |byte: u8| {
        let plain = byte.is_ascii_alphanumeric().then(|| char::from(byte).to_string());
        plain.unwrap_or_else(|| format!("%{byte:02x}"))
    };
    text.bytes().map(escape).collect()
}
