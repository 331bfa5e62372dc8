//! How a webhook is reached: HTTPS to a URL, or a service of this process.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt};

use crate::http::Body;
use crate::json::text;

/// An answer above this size is refused, as kube-apiserver does.
const MAX_ANSWER: usize = 3 << 20;

type InProcess = BoxCloneSyncService<Request<Full<Bytes>>, Response<Body>, BoxError>;
type Https = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// The Services whose pods are this process: webhooks that a `service` reference finds.
///
/// A simulated cluster has no network, so that a Service that is not registered cannot be reached.
#[derive(Clone, Default)]
pub struct WebhookServices(Arc<Mutex<BTreeMap<(String, String), InProcess>>>);

impl fmt::Debug for WebhookServices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let services = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_set().entries(services.keys()).finish()
    }
}

impl WebhookServices {
    /// Makes `service` answer for the Service `namespace/name`, in place of an earlier one.
    pub fn register<S, B>(&self, namespace: &str, name: &str, service: S)
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let service = service
            .map_response(|response: Response<B>| {
                response.map(|body| body.map_err(Into::into).boxed_unsync())
            })
            .map_err(Into::into);
        let mut services = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        services.insert((namespace.to_owned(), name.to_owned()), BoxCloneSyncService::new(service));
    }

    fn find(&self, namespace: &str, name: &str) -> Option<InProcess> {
        let services = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        services.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }
}

/// Calls webhooks. Connections are kept for each CA bundle.
#[derive(Clone, Default)]
pub(super) struct Caller {
    services: WebhookServices,
    clients: Arc<Mutex<BTreeMap<String, Https>>>,
}

impl Caller {
    pub(super) fn new(services: WebhookServices) -> Self {
        Self { services, clients: Arc::default() }
    }

    /// Posts a review and returns the answer's body, within `timeout`. Errors read as those of kube-apiserver.
    pub(super) async fn post(
        &self,
        config: &Value,
        review: &Value,
        timeout: Duration,
    ) -> Result<Bytes, String> {
        let url = target(config)?;
        let shown =
            format!("{url}{}timeout={}s", if url.contains('?') { '&' } else { '?' }, timeout.as_secs());
        let failed = |why: String| format!("failed to call webhook: Post \"{shown}\": {why}");
        let uri: Uri = shown.parse().map_err(|e| failed(format!("invalid URL: {e}")))?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(uri)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .body(Full::new(Bytes::from(review.to_string())))
            .map_err(|e| failed(e.to_string()))?;
        let sending = async {
            let response = self.send(config, request).await?;
            let code = response.status();
            let mut body = response.into_body();
            let mut bytes = BytesMut::new();
            while let Some(frame) = body.frame().await {
                if let Ok(data) = frame.map_err(|e| e.to_string())?.into_data() {
                    if bytes.len() + data.len() > MAX_ANSWER {
                        return Err(format!("the answer exceeds {MAX_ANSWER} bytes"));
                    }
                    bytes.extend_from_slice(&data);
                }
            }
            Ok((code, bytes.freeze()))
        };
        let (code, body) = match tokio::time::timeout(timeout, sending).await {
            Err(_) => return Err(failed("context deadline exceeded".to_owned())),
            Ok(result) => result.map_err(failed)?,
        };
        match code.as_u16() {
            200..300 => Ok(body),
            404 => Err("failed to call webhook: the server could not find the requested resource".to_owned()),
            code => Err(format!(
                "failed to call webhook: an error on the server ({:?}) has prevented the request from succeeding (code {code})",
                String::from_utf8_lossy(&body[..body.len().min(200)]).trim()
            )),
        }
    }

    async fn send(&self, config: &Value, request: Request<Full<Bytes>>) -> Result<Response<Body>, String> {
        let service = &config["service"];
        if service.is_object() {
            let (namespace, name) = (text(&service["namespace"]), text(&service["name"]));
            let found = self.services.find(namespace, name).ok_or_else(|| {
                format!(
                    "service \"{name}\" in namespace \"{namespace}\" is not served by this process: \
                    a simulated cluster has no network to its pods; use clientConfig.url"
                )
            })?;
            return found.oneshot(request).await.map_err(|e| e.to_string());
        }
        let address = address(request.uri());
        let client = self.https(text(&config["caBundle"]))?;
        let response = client.request(request).await.map_err(|error| explain(&error, &address))?;
        Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
    }

    fn https(&self, ca_bundle: &str) -> Result<Https, String> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(ca_bundle) {
            return Ok(client.clone());
        }
        let client = Client::builder(TokioExecutor::new()).build(connector(ca_bundle)?);
        clients.insert(ca_bundle.to_owned(), client.clone());
        Ok(client)
    }
}

/// Trusts the CA bundle (base64 of PEM) and nobody else.
fn connector(ca_bundle: &str) -> Result<HttpsConnector<HttpConnector>, String> {
    let bad = |why: String| format!("caBundle: {why}");
    let pem = STANDARD.decode(ca_bundle).map_err(|e| bad(format!("not base64: {e}")))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|e| bad(format!("not PEM: {e}")))?;
        roots.add(certificate).map_err(|e| bad(e.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_all_versions().build())
}

fn target(config: &Value) -> Result<String, String> {
    let service = &config["service"];
    if service.is_object() {
        let path = text(&service["path"]);
        let path = if path.is_empty() { "/" } else { path };
        let port = service["port"].as_u64().unwrap_or(443);
        return Ok(format!(
            "https://{}.{}.svc:{port}{path}",
            text(&service["name"]),
            text(&service["namespace"])
        ));
    }
    match text(&config["url"]) {
        "" => Err("clientConfig: one of url and service is required".to_owned()),
        url => Ok(url.to_owned()),
    }
}

fn address(uri: &Uri) -> String {
    format!("{}:{}", uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(443))
}

/// The innermost cause in the words that Go programs print and people search for.
fn explain(error: &(dyn StdError + 'static), address: &str) -> String {
    let mut cause = error;
    loop {
        if let Some(io) = cause.downcast_ref::<std::io::Error>()
            && io.kind() == std::io::ErrorKind::ConnectionRefused
        {
            return format!("dial tcp {address}: connect: connection refused");
        }
        if let Some(tls) = tls_error(cause) {
            return match tls {
                rustls::Error::InvalidCertificate(
                    rustls::CertificateError::UnknownIssuer | rustls::CertificateError::BadSignature,
                ) => "tls: failed to verify certificate: x509: certificate signed by unknown authority"
                    .to_owned(),
                rustls::Error::InvalidCertificate(why) => {
                    format!("tls: failed to verify certificate: x509: {why}")
                }
                other => format!("tls: {other}"),
            };
        }
        match cause.source() {
            Some(source) => cause = source,
            None => return cause.to_string(),
        }
    }
}

/// rustls' error, which travels inside I/O errors that do not name it as their source.
fn tls_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    match error.downcast_ref::<std::io::Error>() {
        Some(io) => tls_error(io.get_ref()?),
        None => error.downcast_ref(),
    }
}
