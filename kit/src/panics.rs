//! Panics of tasks that must go on.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;

/// Awaits `future`; a panic in it becomes an error with its message, for the log and for what is done about it.
///
/// A task that panics ends without a word to whoever relies on it. What the future shares with others must be
/// whole at every point where it may panic.
pub async fn catch_panic<F: Future>(future: F) -> Result<F::Output, String> {
    AssertUnwindSafe(future).catch_unwind().await.map_err(|panic| message(panic.as_ref()))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without text").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_becomes_its_message() {
        assert_eq!(catch_panic(async { 7 }).await, Ok(7));
        let literal = catch_panic(async { panic!("no such node") }).await;
        assert_eq!(literal, Err::<(), _>("no such node".to_owned()));
        let formatted = catch_panic(async { panic!("no node {}", 3) }).await;
        assert_eq!(formatted, Err::<(), _>("no node 3".to_owned()));
    }
}
