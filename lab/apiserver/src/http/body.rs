//! Bodies: bounded on the way in, streamed on the way out.

use std::convert::Infallible;

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::Value;
use tower::BoxError;

use super::duplicates;
use super::negotiate::Encoding;
use crate::Status;
use crate::store::to_bytes;

/// The body of every answer, and of requests once they are inside the server.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Requests above this size are refused, as kube-apiserver does.
pub(crate) const MAX_BODY: usize = 3 << 20;

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// A body that is sent as the stream yields it.
pub(crate) fn stream(stream: impl Stream<Item = Bytes> + Send + 'static) -> Body {
    StreamBody::new(stream.map(|bytes| Ok::<_, BoxError>(Frame::data(bytes)))).boxed_unsync()
}

/// Reads a request's body whole.
pub(crate) async fn collect(mut body: Body) -> Result<Bytes, Status> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|e| Status::bad_request(format!("the request body cannot be read: {e}")))?;
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.len() > MAX_BODY {
                return Err(Status::request_too_large(&format!("limit is {MAX_BODY}")));
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes.freeze())
}

pub(crate) fn content_type(headers: &HeaderMap) -> &str {
    let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim()
}

/// What kube-apiserver reads.
const ACCEPTED: &[&str] = &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

/// A request's object, and the fields that occur more than once in its text.
pub(crate) struct Decoded {
    pub(crate) object: Value,
    pub(crate) duplicates: Vec<String>,
}

/// Decodes one object. An absent content type means JSON.
pub(crate) fn decode(headers: &HeaderMap, bytes: &[u8]) -> Result<Decoded, Status> {
    let object = match content_type(headers) {
        "" | "application/json" => {
            let (object, duplicates) = duplicates::parse(bytes).map_err(|e| not_json(&e))?;
            return Ok(Decoded { object, duplicates });
        }
        "application/yaml" => parse_yaml(bytes)?,
        "application/vnd.kubernetes.protobuf" => {
            let types = gantry_kubetypes::Types::builtin();
            gantry_kubetypes::decode(types, bytes).map_err(|e| Status::bad_request(e.to_string()))?
        }
        _ => return Err(Status::unsupported_media_type(ACCEPTED)),
    };
    Ok(Decoded { object, duplicates: Vec::new() })
}

fn not_json(error: &serde_json::Error) -> Status {
    Status::bad_request(format!("the request body is not valid JSON: {error}"))
}

pub(crate) fn parse_json(bytes: &[u8]) -> Result<Value, Status> {
    serde_json::from_slice(bytes).map_err(|e| not_json(&e))
}

pub(crate) fn parse_yaml(bytes: &[u8]) -> Result<Value, Status> {
    let text = std::str::from_utf8(bytes)
        .map_err(|e| Status::bad_request(format!("the request body is not valid YAML: {e}")))?;
    serde_saphyr::from_str(text)
        .map_err(|e| Status::bad_request(format!("the request body is not valid YAML: {e}")))
}

pub(crate) fn json_response(code: u16, bytes: impl Into<Bytes>) -> Response<Body> {
    response(code, "application/json", full(bytes))
}

pub(crate) fn response(code: u16, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).expect("invariant: codes are written in this crate");
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// An object in the encoding that the client asked for.
pub(crate) fn encoded(code: u16, encoding: Encoding, json: Bytes) -> Result<Response<Body>, Status> {
    match encoding {
        Encoding::Json => Ok(json_response(code, json)),
        Encoding::Yaml => {
            let value: Value = serde_json::from_slice(&json).map_err(Status::internal)?;
            Ok(response(code, "application/yaml", full(to_yaml(&value)?)))
        }
    }
}

pub(super) fn to_yaml(value: &Value) -> Result<String, Status> {
    serde_saphyr::to_string(value).map_err(Status::internal)
}

pub(crate) fn status_response(status: &Status) -> Response<Body> {
    let json = status.to_value();
    let mut response = json_response(status.code, to_bytes(&json));
    if let Some(seconds) = json["details"]["retryAfterSeconds"].as_u64() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
