//! What a long-running process answers about itself: `/healthz`, `/readyz`, `/metrics`.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{Metrics, Tasks};

/// What a process waits for before it can do its work. Cheap to clone; each clone is the same.
///
/// Whoever reads `/readyz` sees each condition with its reason, in the form of Kubernetes' own components.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Mutex<BTreeMap<&'static str, Option<String>>>>);

impl Readiness {
    fn conditions(&self) -> MutexGuard<'_, BTreeMap<&'static str, Option<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// States that `condition` does not hold, and why.
    pub fn wait_for(&self, condition: &'static str, why: impl Into<String>) {
        self.conditions().insert(condition, Some(why.into()));
    }

    /// States that `condition` holds.
    pub fn met(&self, condition: &'static str) {
        self.conditions().insert(condition, None);
    }

    /// Whether everything holds, and a line for each condition.
    pub fn report(&self) -> (bool, String) {
        let conditions = self.conditions();
        let mut text = String::new();
        for (condition, why) in &*conditions {
            let _ = match why {
                None => writeln!(text, "[+]{condition} ok"),
                Some(why) => writeln!(text, "[-]{condition} failed: {why}"),
            };
        }
        let ready = conditions.values().all(Option::is_none);
        let _ = writeln!(text, "{}", if ready { "readyz check passed" } else { "readyz check failed" });
        (ready, text)
    }
}

/// Answers on `listener` until cancelled; HTTP/1.1 without TLS, as kubelets and Prometheus ask.
pub async fn serve_endpoints(
    listener: TcpListener,
    metrics: Metrics,
    readiness: Readiness,
    cancel: CancellationToken,
) {
    let connections = Tasks::new(cancel.clone());
    loop {
        let accepted = tokio::select! {
            () = cancel.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Usually out of file descriptors: a moment later there may be some.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        let (metrics, readiness) = (metrics.clone(), readiness.clone());
        connections.spawn_until_cancelled(async move {
            let service = service_fn(async |request: Request<Incoming>| {
                Ok::<_, Infallible>(answer(request.method(), request.uri().path(), &metrics, &readiness))
            });
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the endpoints broke");
            }
        });
    }
    connections.stop().await;
}

fn answer(method: &Method, path: &str, metrics: &Metrics, readiness: &Readiness) -> Response<Full<Bytes>> {
    const PLAIN: &str = "text/plain; charset=utf-8";
    let (code, kind, text) = match (method, path) {
        (&Method::GET | &Method::HEAD, "/healthz" | "/livez") => (StatusCode::OK, PLAIN, "ok\n".to_owned()),
        (&Method::GET | &Method::HEAD, "/readyz") => {
            let (ready, text) = readiness.report();
            (if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, PLAIN, text)
        }
        (&Method::GET | &Method::HEAD, "/metrics") => {
            (StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", metrics.text())
        }
        (_, "/healthz" | "/livez" | "/readyz" | "/metrics") => {
            (StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET and HEAD\n".to_owned())
        }
        _ => (StatusCode::NOT_FOUND, PLAIN, "there are /healthz, /readyz and /metrics\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn ready_is_when_everything_holds_and_the_text_says_what_does_not() {
        let readiness = Readiness::default();
        assert_eq!(readiness.report(), (true, "readyz check passed\n".to_owned()));
        readiness.wait_for("driver", "NVML is not there");
        readiness.met("api");
        let text = "[+]api ok\n[-]driver failed: NVML is not there\nreadyz check failed\n";
        assert_eq!(readiness.report(), (false, text.to_owned()));
        readiness.met("driver");
        assert!(readiness.report().0);
    }

    async fn ask(address: std::net::SocketAddr, request: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn the_endpoints_answer_until_they_are_cancelled() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (metrics, readiness, cancel) =
            (Metrics::default(), Readiness::default(), CancellationToken::new());
        metrics.gauge("gantry_up", "Up.", &[]).set(1);
        readiness.wait_for("driver", "absent");
        let served = tokio::spawn(serve_endpoints(listener, metrics, readiness, cancel.clone()));
        for (line, code, part) in [
            ("GET /healthz", "200 OK", "ok"),
            ("GET /livez", "200 OK", "ok"),
            ("GET /readyz", "503 Service Unavailable", "[-]driver failed: absent"),
            ("GET /metrics", "200 OK", "gantry_up 1"),
            ("POST /metrics", "405 Method Not Allowed", "only GET"),
            ("GET /", "404 Not Found", "there are /healthz"),
        ] {
            let answer =
                ask(address, &format!("{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {code}\r\n")) && answer.contains(part),
                "{line}: {answer}"
            );
        }
        cancel.cancel();
        served.await.unwrap();
    }
}
