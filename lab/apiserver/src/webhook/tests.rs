use std::convert::Infallible;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use gantry_kit::SeededIds;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::store::Object;

/// A request for the pod `default/p`; its namespace has the label `team=a`, the pod `app=x`.
pub(super) fn pod_request(user: &User, operation: Operation) -> Request<'_> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "labels": {"app": "x"}},
    });
    Request {
        operation,
        kind: ResourceKind::new("", "v1", "Pod", "pods"),
        equivalents: Vec::new(),
        convert: &|object, _| object.clone(),
        subresource: "",
        namespace: "default",
        name: "p",
        namespace_object: Some(json!({"metadata": {"name": "default", "labels": {"team": "a"}}})),
        user,
        dry_run: false,
        options: options(operation, Some("kubectl"), false),
        object: pod,
        old: Value::Null,
    }
}

/// Answers a review's request with the `response` of the review, `uid` filled in.
type Answer = fn(&Value) -> Value;

fn review_of(answer: Answer, body: &[u8]) -> Bytes {
    let review: Value = serde_json::from_slice(body).unwrap();
    let mut response = answer(&review["request"]);
    response["uid"] = review["request"]["uid"].clone();
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
        .to_string()
        .into()
}

/// A webhook server with TLS on this machine: its URL and the CA bundle that vouches for it.
async fn serve(answer: Answer) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            )
            .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = hyper::service::service_fn(
                    move |request: http::Request<hyper::body::Incoming>| async move {
                        let path = request.uri().path().to_owned();
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        if path == "/slow" {
                            std::future::pending::<()>().await;
                        }
                        let code = if path == "/broken" { 500 } else { 200 };
                        let answer =
                            http::Response::builder().status(code).body(Full::new(review_of(answer, &body)));
                        Ok::<_, Infallible>(answer.unwrap())
                    },
                );
                let builder = hyper::server::conn::http1::Builder::new();
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    (format!("https://localhost:{port}"), STANDARD.encode(certificate.pem()))
}

fn webhook(url: &str, ca_bundle: &str) -> Value {
    json!({
        "name": "w.x.io",
        "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}],
        "clientConfig": {"url": url, "caBundle": ca_bundle},
        "sideEffects": "None",
    })
}

fn configuration(webhooks: Vec<Value>) -> Vec<Arc<Object>> {
    vec![Arc::new(Object::new(
        json!({"metadata": {"name": "c"}, "webhooks": webhooks}),
        gantry_apimachinery::ManagedFields::NONE,
        1,
    ))]
}

fn webhooks() -> Webhooks {
    Webhooks::new(WebhookServices::default(), Arc::new(SeededIds::new(1)))
}

fn allow(_: &Value) -> Value {
    json!({"allowed": true})
}

fn add_label(request: &Value) -> Value {
    let labels = request["object"]["metadata"]["labels"].as_object().unwrap().len();
    let patch = json!([{"op": "add", "path": format!("/metadata/labels/n{labels}"), "value": "1"}]);
    json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string()), "warnings": ["changed"]})
}

#[tokio::test]
async fn a_webhook_behind_tls_changes_the_object() {
    let (url, ca) = serve(add_label).await;
    let user = User::admin();
    let mut request = pod_request(&user, Operation::Create);
    let warnings = webhooks().mutate(&configuration(vec![webhook(&url, &ca)]), &mut request).await.unwrap();
    assert_eq!(warnings, ["changed"]);
    assert_eq!(request.object["metadata"]["labels"], json!({"app": "x", "n1": "1"}));
}

#[tokio::test]
async fn a_webhook_is_asked_again_only_if_it_wants_and_others_changed_the_object() {
    let (url, ca) = serve(add_label).await;
    let mut again = webhook(&url, &ca);
    again["reinvocationPolicy"] = "IfNeeded".into();
    let once = webhook(&url, &ca);
    let user = User::admin();
    for (case, order, labels) in [
        ("nobody wants", vec![once.clone(), once.clone()], 3),
        ("the first wants, the second changed", vec![again.clone(), once.clone()], 4),
        ("the last wants, nobody came after", vec![once.clone(), again.clone()], 3),
    ] {
        let mut request = pod_request(&user, Operation::Create);
        webhooks().mutate(&configuration(order), &mut request).await.unwrap();
        assert_eq!(request.object["metadata"]["labels"].as_object().unwrap().len(), labels, "{case}");
    }
}

#[tokio::test]
async fn a_refusal_carries_the_webhooks_words_and_code() {
    let (url, ca) = serve(|_| {
        json!({"allowed": false, "status": {"code": 403, "reason": "Forbidden", "message": "no GPU for you"}})
    })
    .await;
    let user = User::admin();
    let request = pod_request(&user, Operation::Create);
    let status = webhooks().validate(&configuration(vec![webhook(&url, &ca)]), &request).await.unwrap_err();
    assert_eq!((status.code, status.reason), (403, "Forbidden"));
    assert_eq!(status.message, "admission webhook \"w.x.io\" denied the request: no GPU for you");
}

#[tokio::test]
async fn failed_calls_end_the_request_unless_they_may_be_ignored() {
    let (url, ca) = serve(allow).await;
    let (_, other_ca) = serve(allow).await;
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let service = |name: &str| {
        let mut webhook = webhook("", "");
        webhook["clientConfig"] =
            json!({"service": {"namespace": "kube-system", "name": name, "path": "/x"}});
        webhook
    };
    let mut slow = webhook(&format!("{url}/slow"), &ca);
    slow["timeoutSeconds"] = 1.into();
    let user = User::admin();
    let request = pod_request(&user, Operation::Create);
    for (webhook, expected) in [
        (slow, format!("failed to call webhook: Post \"{url}/slow?timeout=1s\": context deadline exceeded")),
        (
            webhook(&url, &other_ca),
            format!(
                "failed to call webhook: Post \"{url}?timeout=10s\": tls: failed to verify certificate: x509: "
            ),
        ),
        (
            webhook(&url, ""),
            format!(
                "failed to call webhook: Post \"{url}?timeout=10s\": tls: failed to verify certificate: \
                x509: certificate signed by unknown authority"
            ),
        ),
        (
            webhook(&format!("https://localhost:{gone}/v"), &ca),
            format!(
                "failed to call webhook: Post \"https://localhost:{gone}/v?timeout=10s\": \
                dial tcp localhost:{gone}: connect: connection refused"
            ),
        ),
        (
            webhook(&format!("{url}/broken"), &ca),
            "failed to call webhook: an error on the server (".to_owned(),
        ),
        (
            service("absent"),
            "failed to call webhook: Post \"https://absent.kube-system.svc:443/x?timeout=10s\": \
                service \"absent\" in namespace \"kube-system\" is not served by this process"
                .to_owned(),
        ),
    ] {
        let status = webhooks().validate(&configuration(vec![webhook.clone()]), &request).await.unwrap_err();
        let expected = format!("Internal error occurred: failed calling webhook \"w.x.io\": {expected}");
        assert!(status.message.starts_with(&expected), "{}\n{expected}", status.message);
        assert_eq!((status.code, status.reason), (500, "InternalError"));

        let mut tolerant = webhook;
        tolerant["failurePolicy"] = "Ignore".into();
        assert_eq!(webhooks().validate(&configuration(vec![tolerant]), &request).await, Ok(vec![]));
    }
}

#[tokio::test]
async fn a_service_of_this_process_is_found_by_namespace_and_name() {
    let services = WebhookServices::default();
    let answer = tower::service_fn(|request: http::Request<Full<Bytes>>| async move {
        assert_eq!(request.uri().path(), "/mutate");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Ok::<_, Infallible>(http::Response::new(Full::new(review_of(add_label, &body))))
    });
    services.register("gantry", "webhook", answer);
    let webhooks = Webhooks::new(services, Arc::new(SeededIds::new(1)));
    let mut webhook = webhook("", "");
    webhook["clientConfig"] =
        json!({"service": {"namespace": "gantry", "name": "webhook", "path": "/mutate"}});
    let user = User::admin();
    let mut request = pod_request(&user, Operation::Create);
    webhooks.mutate(&configuration(vec![webhook]), &mut request).await.unwrap();
    assert_eq!(request.object["metadata"]["labels"]["n1"], "1");
}

#[tokio::test]
async fn a_dry_run_reaches_only_webhooks_without_side_effects() {
    let (url, ca) = serve(allow).await;
    let user = User::admin();
    let mut request = pod_request(&user, Operation::Create);
    request.dry_run = true;
    for (side_effects, allowed) in
        [("None", true), ("NoneOnDryRun", true), ("Some", false), ("Unknown", false)]
    {
        let mut webhook = webhook(&url, &ca);
        webhook["sideEffects"] = side_effects.into();
        let result = webhooks().validate(&configuration(vec![webhook]), &request).await;
        assert_eq!(result.is_ok(), allowed, "{side_effects}");
        if let Err(status) = result {
            assert_eq!(status.message, "admission webhook \"w.x.io\" does not support dry run");
        }
    }
}

#[tokio::test]
async fn a_webhook_whose_conditions_do_not_hold_is_not_asked() {
    let user = User::admin();
    let request = pod_request(&user, Operation::Create);
    let mut webhook = webhook("https://localhost:1", "");
    webhook["matchConditions"] = json!([{"name": "others", "expression": "object.metadata.name != 'p'"}]);
    assert_eq!(webhooks().validate(&configuration(vec![webhook]), &request).await, Ok(vec![]));
}
