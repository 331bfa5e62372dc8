//! What requests do to objects, the same for every kind.

mod connect;
mod create;
mod delete;
mod fields;
mod filter;
mod list;
mod meta;
mod owners;
mod patch;
mod subresource;
mod update;
mod view;
mod watch;
mod webhooks;
mod write;

use std::sync::Arc;

use futures::FutureExt;
use http::Response;
use serde_json::Value;

pub(crate) use self::connect::connect;
pub(crate) use self::create::{create, create_object};
pub(crate) use self::delete::{delete, delete_collection};
#[cfg(feature = "fuzzing")]
pub(crate) use self::list::Continue;
pub(crate) use self::list::list;
pub(crate) use self::meta::{check_type, check_type_is, finalizers, now};
pub(crate) use self::owners::Owners;
pub(crate) use self::patch::patch;
pub(crate) use self::subresource::{bind, evict, part, scale};
pub(crate) use self::update::{Part, modify, update};
pub(crate) use self::watch::watch;
use crate::http::{Body, Call};
use crate::json::text;
use crate::server::Inner;
use crate::store::ObjectKey;
use crate::{Error, Status};

/// Reads one object.
pub(crate) fn get(call: &Call) -> Result<Response<Body>, Status> {
    let key = ObjectKey::new(&call.path.namespace, &call.path.name);
    let object = call
        .server
        .store
        .get(&call.resource.id, &key)
        .ok_or_else(|| call.resource.not_found(&call.path.name))?;
    view::respond(call, 200, &object)
}

/// Creates one of the objects that every cluster starts with, unless the state has it.
pub(crate) fn bootstrap(server: &Arc<Inner>, object: Value) -> Result<(), Error> {
    let served = server.registry.served();
    let resource = served
        .by_kind(text(&object["apiVersion"]), text(&object["kind"]))
        .expect("invariant: bootstrap objects are of built-in kinds");
    let (namespace, name) = (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
    let key = ObjectKey::new(namespace, name);
    if server.store.get(&resource.id, &key).is_some() {
        return Ok(());
    }
    let what = format!("{} {name}", resource.kind);
    let call = Call::internal(server, resource, namespace, "");
    let created = create::create_object(&call, object, &[], owners::Owners::Tracked)
        .now_or_never()
        .expect("invariant: only webhooks make a creation wait, and internal calls skip them");
    created.map(|_| ()).map_err(|status| Error::Bootstrap { what, status })
}
