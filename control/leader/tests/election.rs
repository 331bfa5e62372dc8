//! Candidates against the embedded API server, in virtual time.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gantry_apiserver::ApiServer;
use gantry_kit::{CancellationToken, SeededIds, VirtualClock};
use gantry_leader::{Options, Role, lead};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tower::ServiceExt as _;

struct World {
    server: ApiServer,
    clock: Arc<VirtualClock>,
    /// How many work at this moment, and the most that ever did.
    working: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    history: Arc<Mutex<Vec<(u64, String)>>>,
    start: Instant,
}

struct Running {
    role: tokio::sync::watch::Receiver<Role>,
    cut: Arc<AtomicBool>,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(VirtualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
        let ids = Arc::new(SeededIds::new(1));
        let server = ApiServer::new(gantry_apiserver::Options::new(clock.clone(), ids)).unwrap();
        Self {
            server,
            clock,
            working: Arc::default(),
            most: Arc::default(),
            history: Arc::default(),
            start: Instant::now(),
        }
    }

    fn candidate(&self, identity: &str, seed: u64, client: Client, cut: Arc<AtomicBool>) -> Running {
        let ids = Arc::new(SeededIds::new(seed));
        let text = |text: &str| text.to_owned();
        let options = Options::new(
            client,
            self.clock.clone(),
            ids,
            text("kube-system"),
            text("gantry"),
            text(identity),
        );
        let role = options.role.subscribe();
        let cancel = CancellationToken::new();
        let (working, most, history) = (self.working.clone(), self.most.clone(), self.history.clone());
        let (name, start) = (identity.to_owned(), self.start);
        let work = move |term: CancellationToken| {
            let (working, most, history, name) =
                (working.clone(), most.clone(), history.clone(), name.clone());
            async move {
                let now = working.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                let tell = |what: &str| {
                    history.lock().unwrap().push((start.elapsed().as_secs(), format!("{name} {what}")));
                };
                tell("starts");
                term.cancelled().await;
                // Work does not end at once.
                sleep(Duration::from_millis(500)).await;
                tell("ends");
                working.fetch_sub(1, Ordering::SeqCst);
            }
        };
        let task = tokio::spawn(lead(options, cancel.clone(), work));
        Running { role, cut, cancel, task }
    }

    /// A candidate whose connection can be cut: its requests are then never answered.
    fn start(&self, identity: &str, seed: u64) -> Running {
        let cut = Arc::new(AtomicBool::new(false));
        let (service, switch) = (self.server.admin_service(), cut.clone());
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (service, switch) = (service.clone(), switch.clone());
            async move {
                if switch.load(Ordering::SeqCst) {
                    std::future::pending::<()>().await;
                }
                service.oneshot(request).await
            }
        });
        self.candidate(identity, seed, Client::new(service, "default"), cut)
    }

    async fn lease(&self) -> Lease {
        Api::namespaced(self.server.client(), "kube-system").get("gantry").await.unwrap()
    }
}

impl Running {
    async fn leads(&mut self) {
        self.role.wait_for(|role| *role == Role::Leading).await.unwrap();
    }

    async fn stop(self) {
        self.cancel.cancel();
        self.task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_three_works_and_the_next_takes_over_at_once_when_it_ends() {
    let world = World::new();
    let mut first = world.start("a", 1);
    first.leads().await;
    let (mut second, third) = (world.start("b", 2), world.start("c", 3));
    sleep(Duration::from_secs(600)).await;
    assert_eq!(*second.role.borrow(), Role::Standby("a".to_owned()));
    assert_eq!(*world.history.lock().unwrap(), [(0, "a starts".to_owned())]);
    let spec = world.lease().await.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("a"));
    assert_eq!((spec.lease_duration_seconds, spec.lease_transitions), (Some(15), Some(0)));
    third.stop().await;
    first.stop().await;
    second.leads().await;
    // Given up: taken within one pause, which is at most 2.4 s, not after the 15 s of a Lease that was left behind.
    let history = world.history.lock().unwrap().clone();
    assert_eq!(
        history.iter().map(|(_, what)| what.as_str()).collect::<Vec<_>>(),
        ["a starts", "a ends", "b starts"]
    );
    assert!(history[2].0 - history[1].0 <= 3, "{history:?}");
    assert_eq!(world.lease().await.spec.unwrap().lease_transitions, Some(1));
    assert_eq!(world.most.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_has_stopped_before_another_starts() {
    let world = World::new();
    let mut first = world.start("a", 1);
    first.leads().await;
    let mut second = world.start("b", 2);
    sleep(Duration::from_secs(60)).await;
    first.cut.store(true, Ordering::SeqCst);
    second.leads().await;
    let history = world.history.lock().unwrap().clone();
    let names: Vec<&str> = history.iter().map(|(_, what)| what.as_str()).collect();
    assert_eq!(names, ["a starts", "a ends", "b starts"]);
    assert!(history[1].0 <= 71, "it stops 10 s after the renewal that it sent last: {history:?}");
    assert!(history[2].0 >= 72, "the Lease is respected for 15 s: {history:?}");
    assert_eq!(*first.role.borrow_and_update(), Role::Unknown("no answer".to_owned()));
    // Back again, it stands by.
    first.cut.store(false, Ordering::SeqCst);
    first.role.wait_for(|role| *role == Role::Standby("b".to_owned())).await.unwrap();
    assert_eq!(world.most.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_does_not_end_the_term() {
    let world = World::new();
    let mut first = world.start("a", 1);
    first.leads().await;
    let second = world.start("b", 2);
    for _ in 0..20 {
        sleep(Duration::from_secs(30)).await;
        first.cut.store(true, Ordering::SeqCst);
        sleep(Duration::from_secs(3)).await;
        first.cut.store(false, Ordering::SeqCst);
    }
    assert_eq!(*world.history.lock().unwrap(), [(0, "a starts".to_owned())]);
    assert_eq!(*second.role.borrow(), Role::Standby("a".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_taken_or_deleted_ends_the_term_at_the_next_renewal() {
    let world = World::new();
    let leases: Api<Lease> = Api::namespaced(world.server.client(), "kube-system");
    let mut first = world.start("a", 1);
    first.leads().await;
    let taken = serde_json::json!({ "spec": { "holderIdentity": "thief" } });
    leases.patch("gantry", &PatchParams::default(), &Patch::Merge(taken)).await.unwrap();
    first
        .role
        .wait_for(|role| *role == Role::Unknown("the Lease belongs to thief".to_owned()))
        .await
        .unwrap();
    // The thief never renews.
    first.leads().await;
    leases.delete("gantry", &DeleteParams::default()).await.unwrap();
    first.role.wait_for(|role| *role == Role::Unknown("the Lease was deleted".to_owned())).await.unwrap();
    first.leads().await;
    let names: Vec<String> = world.history.lock().unwrap().iter().map(|(_, what)| what.clone()).collect();
    assert_eq!(names, ["a starts", "a ends", "a starts", "a ends", "a starts"]);
}

#[tokio::test(start_paused = true)]
async fn without_permission_the_role_says_what_is_missing_until_it_is_granted() {
    let world = World::new();
    let client = world.server.client_as("system:serviceaccount:gantry:x", &["system:authenticated"]);
    let mut first = world.candidate("a", 1, client, Arc::default());
    let role = first
        .role
        .wait_for(|role| matches!(role, Role::Unknown(why) if !why.is_empty()))
        .await
        .unwrap()
        .clone();
    let Role::Unknown(why) = role else { unreachable!() };
    assert!(why.contains("cannot get resource \"leases\""), "{why}");
    assert!(
        why.ends_with(
            "needs get and update on Lease gantry in kube-system, and create where there is none: gantry manifests | kubectl apply -f -"
        ),
        "{why}"
    );
    first.stop().await;
    assert_eq!(world.working.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn work_that_ends_by_itself_gives_the_lease_up() {
    let world = World::new();
    let ids = Arc::new(SeededIds::new(1));
    let text = |text: &str| text.to_owned();
    let options = Options::new(
        world.server.client(),
        world.clock.clone(),
        ids,
        text("kube-system"),
        text("gantry"),
        text("a"),
    );
    lead(options, CancellationToken::new(), |_| async {}).await;
    assert_eq!(world.lease().await.spec.unwrap().holder_identity.as_deref(), Some(""));
}
