//! The API server's port, reachable from outside the node's network.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};

use anyhow::Context as _;
use nix::sched::{CloneFlags, setns};

/// Listens on a port of this machine's loopback, which is given back, and passes connections on into the network of process `pid`.
pub(crate) fn start(pid: u32, port: u16) -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen on 127.0.0.1")?;
    let outside = listener.local_addr()?.port();
    let path = format!("/proc/{pid}/ns/net");
    let network = File::open(&path).with_context(|| format!("open {path}"))?;
    let (told, entered) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // The listener keeps the network in which it was made; this thread, and those it starts, connect in the node's.
        let result = setns(&network, CloneFlags::CLONE_NEWNET).context("enter the node's network");
        let failed = result.is_err();
        let _ = told.send(result);
        if failed {
            return;
        }
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || pass(client, port));
        }
    });
    entered.recv().context("the forwarding thread has ended")??;
    Ok(outside)
}

fn pass(client: TcpStream, port: u16) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_server) = (client.try_clone()?, server.try_clone()?);
    let there = std::thread::spawn(move || copy(from_client, to_server));
    let back = copy(server, client);
    let _ = there.join();
    back
}

fn copy(mut from: TcpStream, mut to: TcpStream) -> io::Result<()> {
    let result = io::copy(&mut from, &mut to).map(drop);
    let _ = to.shutdown(Shutdown::Write);
    result
}
