//! Private parsers, with the properties that they keep, for the targets in `fuzz/`.

use std::path::Path;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde_json::json;

use crate::auth::Authenticator;
pub use crate::http::fuzzing::{accept, json, path, query, yaml};
pub use crate::remote::fuzzing::{spdy, terminal_size, websocket};
use crate::store::fuzzing::{State, encode, replay};
use crate::store::{ResourceId, Store};
use crate::verbs::Continue;
use crate::webhook::verdict;

/// A continue token that is accepted is written again as one that says the same.
pub fn continue_token(data: &[u8]) {
    for token in [String::from_utf8_lossy(data).into_owned(), URL_SAFE_NO_PAD.encode(data)] {
        match Continue::decode(&token) {
            Ok(place) => {
                let again = Continue::decode(&place.encode());
                assert_eq!(again.ok(), Some(place));
            }
            Err(status) => assert!(status.code == 400 && !status.message.is_empty()),
        }
    }
}

/// A token without the server's signature is nobody's; one with it is that of an account that is there, or nobody's.
pub fn bearer_token(data: &[u8]) {
    static SERVER: LazyLock<(Store, Authenticator)> = LazyLock::new(|| {
        let store = Store::open(None, 10).expect("a store in memory opens");
        let account = json!({"metadata": {"namespace": "n", "name": "a", "uid": "u"}});
        store
            .create(&ResourceId::from("serviceaccounts"), account, gantry_apimachinery::ManagedFields::NONE)
            .expect("the first of its name");
        (store, Authenticator::new())
    });
    let (store, authenticator) = &*SERVER;
    let text = String::from_utf8_lossy(data);
    assert!(authenticator.user(store, &text, Timestamp::UNIX_EPOCH).is_none());
    let signed = authenticator.signed(&format!("e30.{}", URL_SAFE_NO_PAD.encode(data)));
    if let Some(user) = authenticator.user(store, &signed, Timestamp::UNIX_EPOCH) {
        assert!(user.groups.iter().any(|group| group == "system:serviceaccounts:n"));
    }
    // A text that is no claims at all, signed.
    authenticator.user(store, &authenticator.signed(&text), Timestamp::UNIX_EPOCH);
}

/// An answer of a webhook is a verdict within bounds, or a failed call with words.
pub fn admission_review(data: &[u8]) {
    let seen = json!({"a": {"b": [1]}});
    for mutating in [false, true] {
        match verdict("w.x.io", "u1", data, &seen, mutating) {
            Ok(verdict) => {
                assert!(verdict.object.is_none() || (mutating && verdict.denial.is_none()));
                let warned: usize = verdict.warnings.iter().map(|warning| warning.chars().count()).sum();
                assert!(warned <= 4096);
                if let Some(denial) = verdict.denial {
                    assert!((400..600).contains(&denial.code) && !denial.message.is_empty());
                }
            }
            Err(why) => assert!(!why.is_empty()),
        }
    }
}

/// What is sound of a state log is replayed the same without the rest; a sound record is applied or reported.
pub fn state_log(data: &[u8]) {
    let file = Path::new("log.0");
    // Payloads that pass their checksum are reached only if the checksum is made for them.
    let sealed: Vec<u8> = data.split(|byte| *byte == 0).flat_map(encode).collect();
    for bytes in [data, sealed.as_slice()] {
        let mut state = State::default();
        match replay(bytes, file, &mut state) {
            Ok(sound) => {
                let mut again = State::default();
                assert_eq!(replay(&bytes[..sound], file, &mut again).ok(), Some(sound));
                assert_eq!(again.revision, state.revision);
                let count = |state: &State| {
                    state.objects.values().map(std::collections::BTreeMap::len).sum::<usize>()
                };
                assert_eq!(count(&again), count(&state));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
