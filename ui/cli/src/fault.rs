//! `gantry fault`: a GPU of a simulated cluster fails, or is mended. The cluster's own process does it; this asks it over a Unix
//! socket in its folder, which only its user can enter.
//!
//! ```text
//!   gantry fault NODE/INDEX --xid 79 ──one line of JSON──▶ faults.sock ──▶ Cluster::fault
//!                                    ◀──one line of JSON──
//! ```

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use gantry_cluster::Cluster;
use gantry_gpu::is_application_xid;
use gantry_model::FaultKind;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::args::{Connection, FaultOptions};
use crate::{hint, instance};

/// The socket in a cluster's folder.
const SOCKET: &str = "faults.sock";

/// The longest line that is read.
const MAX_LINE: u64 = 4_096;

/// How long either side waits for the other's line.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is to happen to one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Request {
    node: String,
    index: usize,
    change: Change,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Change {
    Xid(u32),
    Lost,
    Ecc,
    Recover,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Answer {
    Done,
    Refused(String),
}

/// Asks the cluster that runs here, or the one that the name or else the kubeconfig names, for a change.
pub(crate) async fn run(connection: &Connection, options: &FaultOptions) -> anyhow::Result<()> {
    let request = request(options)?;
    let running = instance::running()?;
    let named = |info: &&instance::Info| options.name.as_ref().is_none_or(|name| *name == info.name);
    let mut chosen: Vec<_> = running.iter().filter(named).collect();
    if chosen.len() > 1
        && let Some(file) =
            connection.kubeconfig.clone().or_else(|| std::env::var_os("KUBECONFIG").map(Into::into))
    {
        chosen.retain(|info| info.kubeconfig == file);
    }
    let info = match chosen.as_slice() {
        [info] => info,
        [] => return Err(hint::error("no such cluster runs here", "gantry clusters")),
        [first, ..] => {
            let arguments: Vec<String> = std::env::args().skip(1).collect();
            return Err(hint::error(
                format!("{} clusters run here: say which", chosen.len()),
                format!("gantry {} --name {}", arguments.join(" "), first.name),
            ));
        }
    };
    let socket = instance::folder(&info.name)?.join(SOCKET);
    let answer = tokio::time::timeout(PATIENCE, ask(&socket, &request)).await;
    match answer.with_context(|| format!("cluster {} does not answer", info.name))?? {
        Answer::Done => {}
        Answer::Refused(why) => return Err(hint::error(why, "gantry get gpus")),
    }
    let gpu = &options.gpu;
    match request.change {
        Change::Recover => outln!("gpu {gpu} is mended"),
        Change::Xid(xid) if is_application_xid(xid) => {
            outln!("gpu {gpu} reported XID {xid}, which applications cause: it stays in service");
        }
        _ => outln!("gpu {gpu} has failed"),
    }
    Ok(())
}

fn request(options: &FaultOptions) -> anyhow::Result<Request> {
    let parts = options.gpu.rsplit_once('/').and_then(|(node, index)| Some((node, index.parse().ok()?)));
    let Some((node, index)) = parts else {
        return Err(hint::error(
            format!("{:?} is not NODE/INDEX, as in a100-80-1/3", options.gpu),
            "gantry get gpus",
        ));
    };
    let change = match (options.change.xid, options.change.lost, options.change.ecc) {
        (Some(xid), ..) => Change::Xid(xid),
        (None, true, _) => Change::Lost,
        (None, false, true) => Change::Ecc,
        (None, false, false) => Change::Recover,
    };
    Ok(Request { node: node.to_owned(), index, change })
}

async fn ask(socket: &Path, request: &Request) -> anyhow::Result<Answer> {
    let mut stream =
        UnixStream::connect(socket).await.with_context(|| format!("connect to {}", socket.display()))?;
    write(&mut stream, request).await?;
    read(&mut stream).await
}

async fn write(stream: &mut UnixStream, value: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(stream.write_all(&line).await?)
}

async fn read<T: serde::de::DeserializeOwned>(stream: &mut UnixStream) -> anyhow::Result<T> {
    let mut line = String::new();
    if BufReader::new(stream.take(MAX_LINE)).read_line(&mut line).await? == 0 {
        bail!("the other side closed the connection");
    }
    serde_json::from_str(&line).context("read a line of JSON")
}

/// Opens the socket in a cluster's folder.
pub(crate) fn listen(folder: &Path) -> anyhow::Result<UnixListener> {
    let path = folder.join(SOCKET);
    // One that a killed cluster left is nobody's: the folder is claimed.
    let _ = fs::remove_file(&path);
    UnixListener::bind(&path).with_context(|| format!("listen on {}", path.display()))
}

/// Does what is asked for, one request after the other, for ever.
pub(crate) async fn serve(listener: UnixListener, cluster: &Cluster) {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            // Out of files, most likely: others are about to give some back.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let answered = tokio::time::timeout(PATIENCE, async {
            let answer = match read::<Request>(&mut stream).await {
                Ok(request) => apply(cluster, &request),
                Err(error) => Answer::Refused(format!("{error:#}")),
            };
            write(&mut stream, &answer).await
        });
        // Whoever asks and does not wait for the answer does without.
        let _ = answered.await;
    }
}

fn apply(cluster: &Cluster, Request { node, index, change }: &Request) -> Answer {
    let done = match *change {
        Change::Recover => cluster.recover(node, *index),
        Change::Xid(xid) => cluster.fault(node, *index, FaultKind::Xid(xid)),
        Change::Lost => cluster.fault(node, *index, FaultKind::Lost),
        Change::Ecc => cluster.fault(node, *index, FaultKind::DoubleBitEcc),
    };
    done.map_or_else(|error| Answer::Refused(error.to_string()), |()| Answer::Done)
}
