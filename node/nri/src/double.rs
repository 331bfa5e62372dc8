//! The runtime's side, for tests and benchmarks: written from the protocol alone, it shares no code with the plugin's side.
//!
//! It sends as a runtime in Go does (the first 4,096 bytes of a message in one frame, the rest in another), and like that one it
//! cannot read a frame that is longer than its buffer.

use std::io::{Error, ErrorKind, Result};
use std::path::Path;
use std::time::Duration;

use gantry_proto::nri as api;
use gantry_proto::ttrpc::{Request, Response, Status};
use prost::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

/// The buffer of a runtime in Go, in bytes.
const BUFFER: usize = 4_096;

/// A runtime that listens for plugins.
#[derive(Debug)]
pub struct Runtime(UnixListener);

impl Runtime {
    /// Listens at a path, in place of whatever is there.
    pub fn bind(path: &Path) -> Result<Self> {
        let _ = std::fs::remove_file(path);
        UnixListener::bind(path).map(Self)
    }

    /// The next plugin that dials.
    pub async fn accept(&self) -> Result<Plugin> {
        let (socket, _) = self.0.accept().await?;
        Ok(Plugin { socket, inbox: [Vec::new(), Vec::new()], stream: 1, patience: Duration::from_secs(2) })
    }

    /// The next plugin that dials, registered, configured and told of these pods and containers.
    pub async fn join(&self, pods: &[api::PodSandbox], containers: &[api::Container]) -> Result<Plugin> {
        let mut plugin = self.accept().await?;
        plugin.register().await?;
        plugin.configure().await?;
        plugin.synchronize(pods, containers, usize::MAX).await?;
        Ok(plugin)
    }
}

/// A plugin, as the runtime sees it.
#[derive(Debug)]
pub struct Plugin {
    socket: UnixStream,
    /// What has come on the connections 1 and 2.
    inbox: [Vec<u8>; 2],
    /// The next stream.
    stream: u32,
    /// How long a call waits.
    patience: Duration,
}

/// What a call gave: an answer, or the plugin's refusal.
pub type Answer<A> = Result<std::result::Result<A, Status>>;

impl Plugin {
    /// Takes the registration.
    pub async fn register(&mut self) -> Result<api::RegisterPluginRequest> {
        self.answer_registration(Response::default()).await
    }

    /// Refuses the registration.
    pub async fn refuse(&mut self, code: i32, message: &str) -> Result<api::RegisterPluginRequest> {
        let status = Some(Status { code, message: message.to_owned() });
        self.answer_registration(Response { status, payload: Vec::new() }).await
    }

    async fn answer_registration(&mut self, answer: Response) -> Result<api::RegisterPluginRequest> {
        let (stream, kind, payload) = self.message(1).await?;
        let request = Request::decode(&payload[..]).map_err(Error::other)?;
        let expected = (1, "nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin");
        if (kind, request.service.as_str(), request.method.as_str()) != expected || stream % 2 == 0 {
            return Err(Error::other(format!("not a registration: {request:?}")));
        }
        self.send(2, stream, 2, &answer.encode_to_vec()).await?;
        api::RegisterPluginRequest::decode(&request.payload[..]).map_err(Error::other)
    }

    /// Configures the plugin, and gives the mask of events that it wants.
    pub async fn configure(&mut self) -> Result<i32> {
        let request = api::ConfigureRequest {
            runtime_name: "containerd".to_owned(),
            runtime_version: "v2.4.2".to_owned(),
            registration_timeout: 5_000,
            request_timeout: 2_000,
            nri_version: "v0.12.3".to_owned(),
            config: String::new(),
        };
        Ok(fine(self.call::<_, api::ConfigureResponse>("Configure", &request).await?)?.events)
    }

    /// Tells of pods and containers, `part` of each at a time.
    pub async fn synchronize(
        &mut self,
        pods: &[api::PodSandbox],
        containers: &[api::Container],
        part: usize,
    ) -> Result<()> {
        let parts = pods.len().div_ceil(part).max(containers.len().div_ceil(part)).max(1);
        for number in 0..parts {
            let from = number.saturating_mul(part);
            let request = api::SynchronizeRequest {
                pods: pods.iter().skip(from).take(part).cloned().collect(),
                containers: containers.iter().skip(from).take(part).cloned().collect(),
                more: number + 1 < parts,
            };
            let answer = fine(self.call::<_, api::SynchronizeResponse>("Synchronize", &request).await?)?;
            if answer.more != request.more {
                return Err(Error::other("plugin does not handle split sync requests"));
            }
        }
        Ok(())
    }

    /// Asks what to do with a container.
    pub async fn create(
        &mut self,
        pod: &api::PodSandbox,
        container: &api::Container,
    ) -> Answer<api::ContainerAdjustment> {
        let request =
            api::CreateContainerRequest { pod: Some(pod.clone()), container: Some(container.clone()) };
        let answer = self.call::<_, api::CreateContainerResponse>("CreateContainer", &request).await?;
        Ok(answer.map(|answer| answer.adjust.unwrap_or_default()))
    }

    /// Has calls wait this long from now on, instead of two seconds.
    pub fn patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Calls a method of the plugin's service.
    pub async fn call<Q: Message, A: Message + Default>(&mut self, method: &str, request: &Q) -> Answer<A> {
        let stream = self.ask(method, request).await?;
        let answer = tokio::time::timeout(self.patience, self.message(0)).await;
        let (answered, kind, payload) = answer.map_err(|_| Error::from(ErrorKind::TimedOut))??;
        if (answered, kind) != (stream, 2) {
            return Err(Error::other(format!(
                "kind {kind} in stream {answered} for the request in {stream}"
            )));
        }
        let response = Response::decode(&payload[..]).map_err(Error::other)?;
        if let Some(status) = response.status.filter(|status| status.code != 0) {
            return Ok(Err(status));
        }
        A::decode(&response.payload[..]).map(Ok).map_err(Error::other)
    }

    /// Sends a request without waiting for its answer, and gives its stream.
    pub async fn ask(&mut self, method: &str, request: &impl Message) -> Result<u32> {
        let request = Request {
            service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
            method: method.to_owned(),
            payload: request.encode_to_vec(),
            timeout_nano: i64::try_from(self.patience.as_nanos()).unwrap_or(i64::MAX),
            metadata: Vec::new(),
        };
        let stream = self.stream;
        self.stream += 2;
        self.send(1, stream, 1, &request.encode_to_vec()).await?;
        Ok(stream)
    }

    /// The next message of connection 1 (`side` 0) or 2 (`side` 1): its stream, kind and payload.
    pub async fn message(&mut self, side: usize) -> Result<(u32, u8, Vec<u8>)> {
        loop {
            let inbox = &mut self.inbox[side];
            if inbox.len() >= 10 {
                let number =
                    |at: usize| u32::from_be_bytes([inbox[at], inbox[at + 1], inbox[at + 2], inbox[at + 3]]);
                let (length, stream, kind) = (number(0) as usize, number(4), inbox[8]);
                if inbox.len() >= 10 + length {
                    let payload = inbox[10..10 + length].to_vec();
                    inbox.drain(..10 + length);
                    return Ok((stream, kind, payload));
                }
            }
            let connection = self.socket.read_u32().await?;
            let length = self.socket.read_u32().await? as usize;
            if length > BUFFER {
                return Err(Error::other(format!("a frame of {length} bytes: cannot allocate memory")));
            }
            let mut payload = vec![0; length];
            self.socket.read_exact(&mut payload).await?;
            match connection {
                1 | 2 => self.inbox[connection as usize - 1].extend(payload),
                other => return Err(Error::other(format!("a frame for connection {other}"))),
            }
        }
    }

    async fn send(&mut self, connection: u32, stream: u32, kind: u8, payload: &[u8]) -> Result<()> {
        let mut message = u32::try_from(payload.len()).map_err(Error::other)?.to_be_bytes().to_vec();
        message.extend(stream.to_be_bytes());
        message.extend([kind, 0]);
        message.extend(payload);
        let (first, rest) = message.split_at(message.len().min(BUFFER));
        for piece in [first, rest].into_iter().filter(|piece| !piece.is_empty()) {
            self.socket.write_u32(connection).await?;
            self.socket.write_u32(u32::try_from(piece.len()).map_err(Error::other)?).await?;
            self.socket.write_all(piece).await?;
        }
        Ok(())
    }

    /// Sends bytes as they are.
    pub async fn raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.socket.write_all(bytes).await
    }

    /// Waits until the plugin has closed the connection; what comes before is passed over.
    pub async fn closed(mut self) -> Result<()> {
        let mut buffer = [0; BUFFER];
        loop {
            match self.socket.read(&mut buffer).await {
                Ok(0) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
    }
}

fn fine<A>(answer: std::result::Result<A, Status>) -> Result<A> {
    answer.map_err(|status| Error::other(format!("code {}: {}", status.code, status.message)))
}
