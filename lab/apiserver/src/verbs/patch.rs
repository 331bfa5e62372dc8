//! PATCH.

use http::Response;
use serde_json::Value;

use super::update::{Part, modify};
use super::view;
use crate::Status;
use crate::http::{Body, Call, content_type, parse_json};

pub(crate) async fn patch(call: &Call, bytes: &[u8]) -> Result<Response<Body>, Status> {
    let patch = parse_json(bytes)?;
    let kind = content_type(&call.headers).to_owned();
    let updated = modify(call, Part::Main, |current| apply(call, &kind, current, &patch)).await?;
    view::respond(call, 200, &updated)
}

const ACCEPTED: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

fn apply(_call: &Call, kind: &str, current: &Value, patch: &Value) -> Result<Value, Status> {
    match kind {
        "application/merge-patch+json" => {
            let mut new = current.clone();
            json_patch::merge(&mut new, patch);
            Ok(new)
        }
        _ => Err(Status::unsupported_media_type(ACCEPTED)),
    }
}
