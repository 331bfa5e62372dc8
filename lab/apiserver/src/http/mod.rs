//! HTTP: what a request means, how its body is read and how the answer is written.

mod body;
mod duplicates;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod negotiate;
mod path;
mod query;
mod service;

pub use body::Body;
pub(crate) use body::{
    Decoded, collect, content_type, decode, encoded, full, json_response, parse_json, parse_yaml, response,
    status_response, stream,
};
pub(crate) use negotiate::{Accept, Encoding, IncludeObject, Shape};
pub(crate) use path::{RequestPath, ResourcePath};
pub(crate) use query::Query;
pub use service::ApiService;
pub(crate) use service::{Call, is_dry_run};
