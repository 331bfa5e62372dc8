//! Serves an empty cluster on a free port and prints where its kubeconfig is: `cargo run --example serve [DIR]`.

use std::path::PathBuf;
use std::sync::Arc;

use gantry_apiserver::{ApiServer, Error, Options, pki::ServerIdentity};
use gantry_kit::{CancellationToken, RandomIds, SystemClock, init_logging, install_crypto, shutdown_signal};

#[tokio::main]
#[expect(clippy::print_stdout, reason = "the path is the program's output")]
async fn main() -> Result<(), Error> {
    install_crypto();
    init_logging("info", false);
    let dir =
        std::env::args_os().nth(1).map_or_else(|| std::env::temp_dir().join("gantry-serve"), PathBuf::from);
    let mut options = Options::new(Arc::new(SystemClock), Arc::new(RandomIds::default()));
    options.state_dir = Some(dir.join("state"));
    let server = ApiServer::new(options)?;
    let identity = ServerIdentity::load_or_create(&dir.join("pki"))?;
    let address = "127.0.0.1:0";
    let failed = |source| Error::Listen { address: address.to_owned(), source };
    let listener = tokio::net::TcpListener::bind(address).await.map_err(failed)?;
    let url = format!("https://{}", listener.local_addr().map_err(failed)?);
    let kubeconfig = dir.join("kubeconfig");
    identity.write_kubeconfig(&kubeconfig, "gantry", &url)?;
    println!("{}", kubeconfig.display());
    let cancel = CancellationToken::new();
    tokio::spawn({
        let cancel = cancel.clone();
        async move {
            shutdown_signal().await;
            cancel.cancel();
        }
    });
    server.serve_tls(listener, &identity, cancel).await
}
