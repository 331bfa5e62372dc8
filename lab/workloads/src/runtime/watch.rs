//! Following one kind: list, then watch from the list's version, and list again when the server forgot it.

use std::time::Duration;

use futures::{StreamExt as _, pin_mut};
use kube::Client;
use kube::core::params::{ListParams, WatchParams};
use kube::core::{Request, WatchEvent};
use serde_json::Value;
use tracing::debug;

use crate::Error;
use crate::json::Fields as _;
use crate::kinds::Kind;

/// Delays between attempts while the server does not answer.
const BACKOFF: [Duration; 6] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
    Duration::from_secs(30),
];

/// What became known of a kind.
#[derive(Debug)]
pub(crate) enum News {
    /// A full list and the version at which it was taken.
    Listed(Vec<Value>, u64),
    /// An object that came or changed.
    Seen(Value),
    /// An object that was deleted.
    Gone(Value),
}

enum End {
    /// The watch may go on from this version.
    Resume(String),
    /// The server no longer knows the version.
    Expired,
}

/// Follows `kind` for ever and tells `sink` what it learns.
pub(crate) async fn follow(client: Client, kind: Kind, mut sink: impl FnMut(News)) {
    let mut attempts = 0;
    let mut version: Option<String> = None;
    loop {
        let result = match version.take() {
            None => list(&client, kind).await.map(|(items, at)| {
                sink(News::Listed(items, at.parse().unwrap_or(0)));
                End::Resume(at)
            }),
            Some(at) => watch(&client, kind, &at, &mut sink).await,
        };
        match result {
            Ok(End::Resume(at)) => {
                attempts = 0;
                version = Some(at);
            }
            Ok(End::Expired) => debug!(kind = kind.name(), "watch expired, listing again"),
            Err(error) => {
                if attempts == 0 && error.code() == Some(404) {
                    // A server without this kind has no objects of it.
                    sink(News::Listed(Vec::new(), 0));
                }
                debug!(kind = kind.name(), %error, "following failed, trying again");
                tokio::time::sleep(BACKOFF[attempts.min(BACKOFF.len() - 1)]).await;
                attempts += 1;
            }
        }
    }
}

async fn list(client: &Client, kind: Kind) -> Result<(Vec<Value>, String), Error> {
    let mut items = Vec::new();
    let mut params = ListParams::default().limit(1000);
    loop {
        let request = Request::new(kind.path("")).list(&params).map_err(Error::Request)?;
        let mut page: Value = client.request(request).await?;
        if let Some(Value::Array(found)) = page.get_mut("items").map(Value::take) {
            items.extend(found);
        }
        match page.text("/metadata/continue") {
            "" => return Ok((items, page.text("/metadata/resourceVersion").to_owned())),
            token => params = params.continue_token(token),
        }
    }
}

async fn watch(
    client: &Client,
    kind: Kind,
    version: &str,
    sink: &mut impl FnMut(News),
) -> Result<End, Error> {
    let request = Request::new(kind.path(""))
        .watch(&WatchParams::default().timeout(290), version)
        .map_err(Error::Request)?;
    let events = client.request_events::<Value>(request).await?;
    pin_mut!(events);
    let mut version = version.to_owned();
    while let Some(event) = events.next().await {
        let (object, gone) = match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
            WatchEvent::Deleted(object) => (object, true),
            WatchEvent::Bookmark(bookmark) => {
                version = bookmark.metadata.resource_version;
                continue;
            }
            WatchEvent::Error(status) if status.code == 410 => return Ok(End::Expired),
            WatchEvent::Error(status) => return Err(Error::Watch { kind: kind.name(), status }),
        };
        object.text("/metadata/resourceVersion").clone_into(&mut version);
        sink(if gone { News::Gone(object) } else { News::Seen(object) });
    }
    Ok(End::Resume(version))
}
