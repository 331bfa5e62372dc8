//! What a `main` function does first and last.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

/// Sends `tracing` events to standard error, filtered by `GANTRY_LOG`, else `RUST_LOG`, else by `default`
/// (a directive list such as `info,gantry_agent=debug`). Later calls have no effect.
pub fn init_logging(default: &str, json: bool) {
    let filter = EnvFilter::try_from_env("GANTRY_LOG")
        .or_else(|_| EnvFilter::try_from_default_env())
        .unwrap_or_else(|_| EnvFilter::new(default));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_span_events(FmtSpan::NONE)
        .with_writer(std::io::stderr)
        // A log that is collected has no use for colours.
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(true);
    let _ = if json { builder.json().try_init() } else { builder.compact().try_init() };
}

/// Makes *ring* the process-wide TLS provider. Every `main` calls this first: two candidates in the
/// dependency graph and no choice would panic at the first handshake. Later calls have no effect.
pub fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Completes at the first SIGINT, SIGTERM or SIGHUP: a terminal that is closed ends what runs in it in good order.
pub async fn shutdown_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()), signal(SignalKind::hangup()))
    else {
        // Without handlers the default action ends the process, which is what the caller waits for.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}
