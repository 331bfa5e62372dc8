//! POST.

use std::sync::Arc;

use gantry_apimachinery::ManagedFields;
use http::Response;
use serde_json::Value;

use super::owners::{self, Owners};
use super::{fields, meta, view, write};
use crate::http::{Body, Call, Decoded, decode};
use crate::json::{map_at, text};
use crate::store::{CommitError, Object};
use crate::{Status, admission};

/// Draws of a generated name before giving up.
const NAME_DRAWS: usize = 8;

pub(crate) async fn create(call: &Call, bytes: &[u8]) -> Result<Response<Body>, Status> {
    let Decoded { object, duplicates } = decode(&call.headers, bytes)?;
    owners::check_options(call, "CreateOptions", false)?;
    let created = create_object(call, object, &duplicates, Owners::Tracked).await?;
    view::respond(call, 201, &created)
}

/// Creates an object given in the version of the request.
/// `duplicates` are fields that occurred again in its text.
pub(crate) async fn create_object(
    call: &Call,
    mut object: Value,
    duplicates: &[String],
    owners: Owners,
) -> Result<Arc<Object>, Status> {
    meta::check_type(call, &mut object)?;
    if call.resource.namespaced && call.path.namespace.is_empty() {
        return Err(Status::bad_request("an empty namespace may not be set during creation"));
    }
    meta::check_namespace(call, &mut object)?;
    let (clock, ids) = (&call.server.options.clock, &call.server.options.ids);
    if let Owners::Applied(_) = &owners {
        // What is applied by its UID must be there.
        let uid = text(&object["metadata"]["uid"]);
        if !uid.is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(call.resource.conflict(&call.path.name, &why));
        }
    }
    meta::prepare_new(&mut object, clock, ids)?;
    let resource = &call.resource;
    let errors = fields::check(call, &mut object, duplicates)?;
    let given = owners::take_given(call, &mut object, &ManagedFields::NONE);
    resource.to_storage(&mut object);
    if resource.has_status() && !resource.hooks.keeps_status {
        map_at(&mut object, &[]).remove("status");
    }
    // Owners are told before the server has its say: what it sets is nobody's, as in Kubernetes.
    write::default(call, &mut object);
    let managed = match owners {
        Owners::Tracked => owners::after(call, &given, None, &object),
        Owners::Applied(managed) => managed,
    };
    (resource.hooks.prepare)(&mut object);
    if resource.custom.is_some() || has_generation(&resource.kind, &object) {
        map_at(&mut object, &["metadata"]).insert("generation".into(), 1.into());
    }
    for _ in 0..NAME_DRAWS {
        let mut attempt = object.clone();
        let generated = meta::generate_name(&mut attempt, ids);
        let name = text(&attempt["metadata"]["name"]).to_owned();
        meta::check_namespace_accepts(call, &name)?;
        let mut attempt = write::admit(call, attempt, None, errors.clone()).await?;
        let _allocations = admission::allocate(&call.server, resource, &mut attempt)?;
        if call.dry_run() {
            return dry_run(call, &name, attempt, managed);
        }
        match call.server.store.create(&resource.id, attempt, managed.clone()) {
            Err(CommitError::Exists) if generated => {}
            Ok(created) => {
                write::committed(call, &created, false);
                return Ok(created);
            }
            Err(error) => return Err(write::commit_failure(call, &name, error)),
        }
    }
    Err(resource.already_exists(text(&object["metadata"]["generateName"])))
}

fn dry_run(call: &Call, name: &str, object: Value, managed: ManagedFields) -> Result<Arc<Object>, Status> {
    let object = write::unsaved(object, managed);
    match call.server.store.get(&call.resource.id, &object.key()) {
        Some(_) => Err(call.resource.already_exists(name)),
        None => Ok(object),
    }
}

/// Kinds with a desired state whose generations Kubernetes does not count.
const UNCOUNTED: &[&str] = &[
    "CertificateSigningRequest",
    "Lease",
    "LimitRange",
    "Namespace",
    "Node",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "ResourceQuota",
    "Service",
];

/// Kubernetes counts generations where there is a desired state to count.
fn has_generation(kind: &str, object: &Value) -> bool {
    (object.get("spec").is_some() && !UNCOUNTED.contains(&kind)) || object.get("webhooks").is_some()
}
