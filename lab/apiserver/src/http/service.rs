//! From a request to an answer.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use gantry_apimachinery::{FieldError, FieldPath, ResourceName};
use http::header::{HeaderValue, WARNING};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::BodyExt;
use tower::{BoxError, Service};

use super::{
    Accept, Body, Query, RequestPath, ResourcePath, collect, decode, full, json_response, response,
    status_response,
};
use crate::auth::{self, Action, authorize};
use crate::registry::{Behaviour, Resource, Served, Subresource};
use crate::server::{ApiServer, Inner};
use crate::store::{ObjectKey, to_bytes};
use crate::user::{Review, User};
use crate::verbs::{self, Part};
use crate::{Status, discovery, openapi, openapi_v2};
use serde_json::json;

/// The server as a `tower::Service`; cheap to clone, always ready.
#[derive(Debug, Clone)]
pub struct ApiService {
    server: ApiServer,
    user: Option<User>,
    component: Option<&'static str>,
}

impl ApiService {
    /// With a user, every request is theirs; without, each must prove whose it is.
    pub(crate) fn new(server: ApiServer, user: Option<User>) -> Self {
        Self { server, user, component: None }
    }

    /// For a component of the cluster, by its name, which reads nobody's `metadata.managedFields`.
    pub(crate) fn for_component(server: ApiServer, user: User, name: &'static str) -> Self {
        Self { server, user: Some(user), component: Some(name) }
    }
}

impl<B> Service<Request<B>> for ApiService
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let server = self.server.inner.clone();
        let user = self.user.clone();
        let component = self.component;
        let (parts, body) = request.into_parts();
        let body = body.map_err(Into::into).boxed_unsync();
        Box::pin(async move { Ok(handle(server, user, component, parts, body).await) })
    }
}

/// One request to a resource, as the verbs see it.
pub(crate) struct Call {
    pub(crate) server: Arc<Inner>,
    pub(crate) user: User,
    pub(crate) path: ResourcePath,
    pub(crate) resource: Arc<Resource>,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    /// Whether the server itself makes the request, past all webhooks.
    pub(crate) is_internal: bool,
    /// Which component of the cluster asks, if it is one that runs in this process.
    pub(crate) component: Option<&'static str>,
    warnings: Mutex<Vec<String>>,
}

impl Call {
    /// A request that the server makes itself.
    pub(crate) fn internal(
        server: &Arc<Inner>,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
    ) -> Self {
        Self {
            server: server.clone(),
            user: User::admin(),
            path: ResourcePath {
                group: resource.group.clone(),
                version: resource.version.clone(),
                namespace: namespace.to_owned(),
                resource: resource.plural.clone(),
                name: name.to_owned(),
                subresource: String::new(),
            },
            resource: resource.clone(),
            query: Query::default(),
            headers: HeaderMap::new(),
            is_internal: true,
            component: None,
            warnings: Mutex::default(),
        }
    }

    /// Sends a `Warning` header with the answer; kubectl prints it.
    pub(crate) fn warn(&self, text: impl Into<String>) {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        let text = text.into();
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// The same request, to outlive its handler: a watch goes on after its headers are sent.
    fn detach(&self) -> Self {
        Self {
            server: self.server.clone(),
            user: self.user.clone(),
            path: self.path.clone(),
            resource: self.resource.clone(),
            query: self.query.clone(),
            headers: self.headers.clone(),
            is_internal: self.is_internal,
            component: self.component,
            warnings: Mutex::default(),
        }
    }

    /// Whether the answer is to go without `metadata.managedFields`.
    pub(crate) fn is_lean(&self) -> bool {
        self.component.is_some()
    }

    fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn dry_run(&self) -> bool {
        self.query.all("dryRun").any(|value| value == DRY_RUN_ALL)
    }
}

/// The only kind of dry run.
const DRY_RUN_ALL: &str = "All";

/// Whether nothing is to be stored. A value that is unknown is an error: it must not become a write in earnest.
pub(crate) fn is_dry_run<'a>(values: impl Iterator<Item = &'a str>) -> Result<bool, Status> {
    let mut dry = false;
    for value in values {
        if value != DRY_RUN_ALL {
            return Err(Status::invalid(
                ResourceName { group: "meta.k8s.io", resource: "CreateOptions", name: "" },
                &[FieldError::not_supported(&FieldPath::new("dryRun"), json!([value]), [DRY_RUN_ALL])],
            ));
        }
        dry = true;
    }
    Ok(dry)
}

async fn handle(
    server: Arc<Inner>,
    user: Option<User>,
    component: Option<&'static str>,
    parts: Parts,
    body: Body,
) -> Response<Body> {
    let now = server.options.clock.now();
    let caller = auth::identify(&server.store, &server.authenticator, user.as_ref(), &parts.headers, now);
    let result = match caller {
        Ok(caller) => dispatch(server, caller, component, parts, body).await,
        Err(status) => Err(status),
    };
    let mut response = result.unwrap_or_else(|status| status_response(&status));
    if let Ok(id) = HeaderValue::from_str("no-cache, private") {
        response.headers_mut().entry(http::header::CACHE_CONTROL).or_insert(id);
    }
    response
}

async fn dispatch(
    server: Arc<Inner>,
    user: User,
    component: Option<&'static str>,
    parts: Parts,
    body: Body,
) -> Result<Response<Body>, Status> {
    let served = server.registry.served();
    let path = match RequestPath::parse(parts.uri.path()) {
        RequestPath::Resource(path) => path,
        other => {
            let verb = parts.method.as_str().to_lowercase();
            authorize(&server.store, &user, &Action::Path { verb: &verb, path: parts.uri.path() })?;
            return about_server(&server, &served, &other, &parts.headers);
        }
    };
    let resource =
        served.find(&path.group, &path.version, &path.resource).cloned().ok_or_else(Status::unknown_path)?;
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let call = Call {
        server,
        user,
        path,
        resource,
        query,
        headers: parts.headers.clone(),
        is_internal: false,
        component,
        warnings: Mutex::default(),
    };
    let result = match is_dry_run(call.query.all("dryRun")) {
        Ok(_) => resource_request(&call, parts, body).await,
        Err(status) => Err(status),
    };
    let mut response = result.unwrap_or_else(|status| status_response(&status));
    for warning in call.take_warnings() {
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{}\"", quote_warning(&warning))) {
            response.headers_mut().append(WARNING, value);
        }
    }
    Ok(response)
}

/// Answers that do not concern objects.
fn about_server(
    server: &Inner,
    served: &Served,
    path: &RequestPath,
    headers: &HeaderMap,
) -> Result<Response<Body>, Status> {
    let accept = Accept::of(headers);
    match path {
        RequestPath::Health => Ok(response(200, "text/plain; charset=utf-8", full("ok"))),
        RequestPath::Version => Ok(discovery::version(&server.options.version)),
        RequestPath::CoreVersions => Ok(discovery::core_versions(served, &accept)),
        RequestPath::Groups => Ok(discovery::groups(served, &accept)),
        RequestPath::Group(group) => discovery::group(served, group),
        RequestPath::GroupVersion(group, version) => discovery::resources(served, group, version),
        RequestPath::OpenApiV2 => openapi_v2::answer(served, headers),
        RequestPath::OpenApiIndex => Ok(openapi::index(served)),
        RequestPath::OpenApi(group, version) => openapi::group_version(served, group, version),
        RequestPath::Root => {
            let paths = ["/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"];
            Ok(json_response(200, to_bytes(&json!({"paths": paths}))))
        }
        _ => Err(Status::unknown_path()),
    }
}

/// Quotes a warning's text as RFC 7234 wants it; control characters cannot be in a header at all.
fn quote_warning(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

async fn resource_request(call: &Call, parts: Parts, body: Body) -> Result<Response<Body>, Status> {
    let resource = &call.resource;
    let path = &call.path;
    if !path.namespace.is_empty() && !resource.namespaced {
        return Err(Status::unknown_path());
    }
    if !path.subresource.is_empty() {
        let subresource = resource.subresource(&path.subresource).ok_or_else(Status::unknown_path)?.clone();
        return subresource_request(call, &subresource, parts, body).await;
    }
    let named = !path.name.is_empty();
    // A named object of a namespaced resource exists only within a namespace.
    if named && resource.namespaced && path.namespace.is_empty() {
        return Err(Status::unknown_path());
    }
    let verb = match parts.method {
        Method::GET | Method::HEAD if named => "get",
        Method::GET | Method::HEAD if call.query.flag("watch") => "watch",
        Method::GET | Method::HEAD => "list",
        Method::POST if !named => "create",
        Method::PUT if named => "update",
        Method::PATCH if named => "patch",
        Method::DELETE if named => "delete",
        Method::DELETE => "deletecollection",
        _ => return Err(Status::method_not_allowed(resource.named(&path.name), parts.method.as_str())),
    };
    if !resource.verbs.contains(&verb) {
        return Err(Status::method_not_allowed(resource.named(&path.name), verb));
    }
    check_allowed(call, verb)?;
    match (verb, resource.behaviour) {
        ("create", Behaviour::Review(review)) => answer_review(call, review, &collect(body).await?),
        ("create", Behaviour::Binding) => {
            let bytes = collect(body).await?;
            let binding = decode(&call.headers, &bytes)?.object;
            verbs::bind(call, crate::json::text(&binding["metadata"]["name"]), &bytes).await
        }
        ("create", Behaviour::Stored) => verbs::create(call, &collect(body).await?).await,
        ("get", _) => verbs::get(call),
        ("list", _) => verbs::list(call),
        ("watch", _) => verbs::watch(call.detach()),
        ("update", _) => verbs::update(call, &collect(body).await?).await,
        ("patch", _) => verbs::patch(call, &collect(body).await?).await,
        ("delete", _) => verbs::delete(call, &collect(body).await?).await,
        ("deletecollection", _) => verbs::delete_collection(call, &collect(body).await?).await,
        _ => Err(Status::method_not_allowed(resource.named(&path.name), verb)),
    }
}

async fn subresource_request(
    call: &Call,
    subresource: &Subresource,
    mut parts: Parts,
    body: Body,
) -> Result<Response<Body>, Status> {
    let verb = match parts.method {
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        _ => "",
    };
    if !subresource.verbs().contains(&verb) {
        return Err(Status::method_not_allowed(call.resource.named(&call.path.name), parts.method.as_str()));
    }
    check_allowed(call, verb)?;
    match subresource {
        Subresource::Status | Subresource::Approval => {
            verbs::part(call, Part::Status, verb, &collect(body).await?).await
        }
        Subresource::Finalize => verbs::part(call, Part::Finalize, verb, &collect(body).await?).await,
        Subresource::Scale(paths) => verbs::scale(call, paths, verb, &collect(body).await?).await,
        Subresource::Binding => verbs::bind(call, &call.path.name, &collect(body).await?).await,
        Subresource::Eviction => verbs::evict(call, &collect(body).await?).await,
        Subresource::Log | Subresource::Exec | Subresource::Attach | Subresource::PortForward => {
            verbs::connect(call, subresource, &mut parts).await
        }
        Subresource::Token => issue_token(call, &collect(body).await?),
    }
}

fn check_allowed(call: &Call, verb: &str) -> Result<(), Status> {
    let ResourcePath { group, resource, subresource, namespace, name, .. } = &call.path;
    authorize(
        &call.server.store,
        &call.user,
        &Action::Resource { verb, group, resource, subresource, namespace, name },
    )
}

/// Answers a question about identity or permission; nothing is stored.
fn answer_review(call: &Call, review: Review, bytes: &[u8]) -> Result<Response<Body>, Status> {
    let mut object = decode(&call.headers, bytes)?.object;
    verbs::check_type(call, &mut object)?;
    let server = &call.server;
    let now = server.options.clock.now();
    let answer = auth::review(
        &server.store,
        &server.authenticator,
        &call.user,
        review,
        &call.path.namespace,
        object,
        now,
    )?;
    Ok(json_response(201, to_bytes(&answer)))
}

fn issue_token(call: &Call, bytes: &[u8]) -> Result<Response<Body>, Status> {
    let key = ObjectKey::new(&call.path.namespace, &call.path.name);
    let account = call.server.store.get(&call.resource.id, &key);
    let account = account.ok_or_else(|| call.resource.not_found(&call.path.name))?;
    let mut request = decode(&call.headers, bytes)?.object;
    verbs::check_type_is(&mut request, "authentication.k8s.io/v1", "TokenRequest")?;
    let now = call.server.options.clock.now();
    let answer = auth::answer_token_request(&call.server.authenticator, &account.value, request, now)?;
    Ok(json_response(201, to_bytes(&answer)))
}
