//! The API server's port, reachable from outside the node's network.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};

use anyhow::Context as _;

use crate::machine::in_network;

/// Listens on a port of this machine's loopback, which is given back, and passes connections on into the network of process `pid`.
pub(crate) fn start(pid: u32, port: u16) -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen on 127.0.0.1")?;
    let outside = listener.local_addr()?.port();
    // The listener is of this network; whoever passes connections on connects in the node's.
    let serve = move |()| {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || pass(client, port));
        }
    };
    in_network(pid, || Ok(()), serve)?;
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
