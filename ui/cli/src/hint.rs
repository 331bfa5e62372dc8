//! What a person can do about an error: kept apart from it, so that it stands last however much is told before.

use std::error::Error;
use std::fmt;

/// An error and what to do about it.
#[derive(Debug)]
struct Hinted {
    error: anyhow::Error,
    hint: String,
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Error for Hinted {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

/// An error with something to paste.
pub(crate) fn error(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Hinted { error: anyhow::Error::msg(message.into()), hint: hint.into() })
}

/// Adds what to do to an error that came from elsewhere.
pub(crate) trait WithHint<T> {
    /// The same, with `hint` for a failure.
    fn hint(self, hint: impl FnOnce() -> String) -> anyhow::Result<T>;
}

impl<T> WithHint<T> for anyhow::Result<T> {
    fn hint(self, hint: impl FnOnce() -> String) -> anyhow::Result<T> {
        self.map_err(|error| anyhow::Error::new(Hinted { error, hint: hint() }))
    }
}

/// What is printed of a failure: the error with its causes in one line, then what to do.
pub(crate) fn report(error: &anyhow::Error) -> String {
    let mut text = String::from("error: ");
    for (depth, cause) in error.chain().enumerate() {
        let cause = cause.to_string();
        // Some libraries end their text with that of their cause.
        if depth > 0 && !text.ends_with(&cause) {
            text.push_str(": ");
        }
        if depth == 0 || !text.ends_with(&cause) {
            text.push_str(&cause);
        }
    }
    let hint = error.chain().find_map(|cause| match cause.downcast_ref::<Hinted>() {
        Some(hinted) => Some(hinted.hint.clone()),
        None => cause.downcast_ref::<gantry_view::Error>()?.hint(),
    });
    if let Some(hint) = hint {
        text.push_str("\nhint: ");
        text.push_str(&hint);
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn the_hint_stands_last_and_no_cause_twice() {
        let failed = || Err::<(), _>(std::io::Error::other("address in use"));
        let outer =
            failed().context("listen on 127.0.0.1:1").hint(|| "leave out --port".to_owned()).context("up");
        let error = outer.expect_err("it failed");
        assert_eq!(
            report(&error),
            "error: up: listen on 127.0.0.1:1: address in use\nhint: leave out --port"
        );
        let twice = failed().context("open: address in use").expect_err("it failed");
        assert_eq!(report(&twice), "error: open: address in use");
        let view =
            anyhow::Error::new(gantry_view::Error::NoGpu { text: "x".to_owned() }).context("describe gpu");
        assert_eq!(report(&view), "error: describe gpu: no GPU matches \"x\"\nhint: gantry get gpus");
        assert_eq!(
            report(&super::error("99 clusters run", "gantry down --all")),
            "error: 99 clusters run\nhint: gantry down --all"
        );
    }
}
