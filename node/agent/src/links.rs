//! Where the agent stands with the kubelet: a server and a registration for each resource.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use gantry_proto::deviceplugin::{DevicePluginOptions, KUBELET_SOCKET};
use tokio::time::sleep;

use crate::Error;
use crate::agent::RETRY;
use crate::handle::Shared;
use crate::plugin::{self, Plugin};
use crate::socket::{self, Server, SocketId};

/// The links by resource. A resource that has lost its last device keeps its link, and with it an empty list, until the kubelet or the
/// agent starts anew.
#[derive(Default)]
pub(crate) struct Links {
    links: BTreeMap<Arc<str>, Link>,
    /// Whether it was said that there is nothing to register, with which kubelet.
    idle: Option<SocketId>,
}

/// What links are reconciled with.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    /// The kubelet's folder.
    pub(crate) folder: &'a Path,
    pub(crate) shared: &'a Arc<Shared>,
    /// Whether resources are registered, or only served.
    pub(crate) register: bool,
    /// Whether what is offered can be had. Until then no server is started.
    pub(crate) ready: bool,
}

struct Link {
    /// The kubelet's socket when we last acted on it.
    kubelet: Option<SocketId>,
    server: Option<Server>,
    /// What the server answers.
    options: DevicePluginOptions,
    progress: Progress,
    /// The next wait after a failure.
    delay: Duration,
    /// The next wait after somebody else has put a socket in place of ours.
    truce: Duration,
}

enum Progress {
    /// There is something to do.
    Idle,
    Calling(Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>),
    Waiting(Pin<Box<tokio::time::Sleep>>),
    /// Registered.
    Done,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            kubelet: None,
            server: None,
            options: DevicePluginOptions::default(),
            progress: Progress::Idle,
            delay: RETRY.0,
            truce: RETRY.0,
        }
    }
}

impl Link {
    fn wait(&mut self) {
        self.progress = Progress::Waiting(Box::pin(sleep(self.delay)));
        self.delay = (self.delay * 2).min(RETRY.1);
    }
}

impl Links {
    /// Waits for the end of a registration, or of a wait after a failure. The lines of log that it is worth.
    pub(crate) async fn next(&mut self, shared: &Shared) -> Option<String> {
        std::future::poll_fn(|context| {
            for (resource, link) in &mut self.links {
                match &mut link.progress {
                    Progress::Idle | Progress::Done => {}
                    Progress::Waiting(wait) => {
                        if wait.as_mut().poll(context).is_ready() {
                            link.progress = Progress::Idle;
                            return Poll::Ready(None);
                        }
                    }
                    Progress::Calling(call) => match call.as_mut().poll(context) {
                        Poll::Pending => {}
                        Poll::Ready(Ok(())) => {
                            link.progress = Progress::Done;
                            link.delay = RETRY.0;
                            shared.registrations.send_modify(|count| *count += 1);
                            return Poll::Ready(Some(format!(
                                "Registered device plugin for '{resource}' with Kubelet"
                            )));
                        }
                        Poll::Ready(Err(error)) => {
                            link.wait();
                            return Poll::Ready(Some(format!("Could not {error}; trying again")));
                        }
                    },
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Serves and registers every resource that is not yet, and anew where the kubelet has a new socket, or ours is gone: a kubelet
    /// that starts empties the folder.
    pub(crate) fn reconcile(&mut self, context: &Context<'_>, log: &mut dyn FnMut(String)) {
        let kubelet = SocketId::at(&context.folder.join(KUBELET_SOCKET));
        let lists = Arc::clone(&context.shared.devices.borrow());
        let Some(kubelet) = kubelet else {
            for link in self.links.values_mut() {
                link.kubelet = None;
                link.progress = Progress::Idle;
            }
            self.idle = None;
            return;
        };
        if lists.is_empty() && self.idle != Some(kubelet) {
            log("No devices found. Waiting for one.".to_owned());
            self.idle = Some(kubelet);
        }
        if !lists.is_empty() {
            self.idle = None;
        }
        for resource in lists.keys() {
            self.links.entry(Arc::clone(resource)).or_default();
        }
        // A kubelet that is new has never heard of a resource that is empty.
        self.links.retain(|resource, link| lists.contains_key(resource) || link.kubelet == Some(kubelet));
        for (resource, link) in &mut self.links {
            let offered = lists.contains_key(resource);
            link.reconcile(context, kubelet, resource, offered, log);
        }
    }

    /// Removes the sockets that are ours: the kubelet then reports no device instead of waiting for a plugin that is gone.
    pub(crate) fn end(self, folder: &Path) {
        for (resource, link) in self.links {
            let Ok(endpoint) = socket::file_name(&resource) else {
                continue;
            };
            let path = folder.join(endpoint);
            if link.server.is_some_and(|server| Some(server.id) == SocketId::at(&path)) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

impl Link {
    fn reconcile(
        &mut self,
        context: &Context<'_>,
        kubelet: SocketId,
        resource: &Arc<str>,
        offered: bool,
        log: &mut dyn FnMut(String),
    ) {
        let Context { folder, shared, register, ready } = *context;
        let endpoint = match socket::file_name(resource) {
            Ok(endpoint) => endpoint,
            Err(error) => return self.refused(kubelet, &error, log),
        };
        let path = folder.join(&endpoint);
        let served = self.server.as_ref().is_some_and(|server| Some(server.id) == SocketId::at(&path));
        let same = self.kubelet == Some(kubelet);
        if same && served && !matches!(self.progress, Progress::Idle) {
            return;
        }
        if same && matches!(self.progress, Progress::Waiting(_))
            || !offered
            || !ready && self.server.is_none()
        {
            return;
        }
        if !same {
            self.delay = RETRY.0;
            self.truce = RETRY.0;
        }
        let is_settled = matches!(self.progress, Progress::Done);
        if same && !served && is_settled && self.server.is_some() && SocketId::at(&path).is_some() {
            // Two that take it from each other at once would do nothing else.
            log(format!("Another program serves '{resource}' on {}; taking it back", path.display()));
            self.progress = Progress::Waiting(Box::pin(sleep(self.truce)));
            self.truce = (self.truce * 2).min(RETRY.1);
            return;
        }
        if !(same && served) {
            if let Err(error) = socket::check_path(&path) {
                return self.refused(kubelet, &error, log);
            }
            // The old one ends first: its streams belong to a kubelet that is gone.
            self.server = None;
            let options = plugin::options(shared, resource);
            self.options = options;
            let make = |stop| Plugin::new(Arc::clone(shared), Arc::clone(resource), options, stop);
            match Server::start(&path, make) {
                Ok(server) => self.server = Some(server),
                Err(error) => {
                    self.kubelet = Some(kubelet);
                    log(format!("Could not {error}; trying again"));
                    self.wait();
                    return;
                }
            }
            log(format!("Starting to serve '{resource}' on {}", path.display()));
        }
        self.kubelet = Some(kubelet);
        self.progress = if register {
            let kubelet = folder.join(KUBELET_SOCKET);
            Progress::Calling(Box::pin(socket::register(
                kubelet,
                endpoint,
                resource.to_string(),
                self.options,
            )))
        } else {
            Progress::Done
        };
    }

    /// A resource that cannot be served, whatever is tried: said once for each kubelet.
    fn refused(&mut self, kubelet: SocketId, error: &Error, log: &mut dyn FnMut(String)) {
        if self.kubelet != Some(kubelet) {
            self.kubelet = Some(kubelet);
            self.progress = Progress::Done;
            log(format!("Cannot serve it: {error}"));
        }
    }
}
