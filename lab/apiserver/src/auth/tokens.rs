//! Bearer tokens: those of service accounts, which the server signs, and those that its owner names.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use gantry_apimachinery::{FieldError, FieldPath};
use gantry_kit::stamp;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{AUTHENTICATED, service_account_groups};
use crate::json::{items, set, text};
use crate::store::{ObjectKey, ResourceId, Store};
use crate::{ResourceName, Status, User};

/// The audience of tokens that do not name another.
pub(crate) const AUDIENCE: &str = "https://kubernetes.default.svc.cluster.local";
const BLOCK: usize = 64;

/// Knows the tokens. Service accounts' tokens are valid as long as the process that issued them runs.
pub(crate) struct Authenticator {
    key: [u8; 32],
    named: Mutex<BTreeMap<String, User>>,
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticator").finish_non_exhaustive()
    }
}

impl Authenticator {
    /// With a key that nobody else knows.
    pub(crate) fn new() -> Self {
        let mut key = [0; 32];
        rustls::crypto::ring::default_provider()
            .secure_random
            .fill(&mut key)
            .expect("invariant: the operating system has entropy");
        Self { key, named: Mutex::default() }
    }

    /// Lets whoever shows `token` be `user`.
    pub(crate) fn insert(&self, token: &str, user: User) {
        self.named.lock().unwrap_or_else(PoisonError::into_inner).insert(token.to_owned(), user);
    }

    /// Signs a token for a service account, as a JWT (RFC 7519) with the claims of Kubernetes.
    pub(crate) fn issue(&self, account: &Value, audiences: &[&str], now: Timestamp, seconds: i64) -> String {
        let metadata = &account["metadata"];
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        let issued = now.as_second();
        let claims = json!({
            "iss": AUDIENCE, "sub": format!("system:serviceaccount:{namespace}:{name}"),
            "aud": if audiences.is_empty() { &[AUDIENCE] } else { audiences },
            "iat": issued, "nbf": issued, "exp": issued.saturating_add(seconds),
            "kubernetes.io": {
                "namespace": namespace, "serviceaccount": {"name": name, "uid": metadata["uid"]},
            },
        });
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        self.signed(&format!("{}.{}", encode(&json!({"alg": "HS256", "typ": "JWT"})), encode(&claims)))
    }

    /// A header and claims, with their signature.
    pub(crate) fn signed(&self, text: &str) -> String {
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(self.sign(text.as_bytes())))
    }

    /// Whose token it is; nobody's if it is unknown, expired, or its service account is gone.
    pub(crate) fn user(&self, store: &Store, token: &str, now: Timestamp) -> Option<User> {
        if let Some(user) = self.named.lock().unwrap_or_else(PoisonError::into_inner).get(token) {
            return Some(user.clone());
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        if !same(&signature, &self.sign(signed.as_bytes())) {
            return None;
        }
        let (_, claims) = signed.split_once('.')?;
        let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
        if claims["exp"].as_i64()? <= now.as_second() {
            return None;
        }
        let account = &claims["kubernetes.io"];
        let namespace = text(&account["namespace"]);
        let key = ObjectKey::new(namespace, text(&account["serviceaccount"]["name"]));
        let found = store.get(&ResourceId::from("serviceaccounts"), &key)?;
        if found.value["metadata"]["uid"] != account["serviceaccount"]["uid"] {
            return None;
        }
        let mut groups = service_account_groups(namespace);
        groups.push(AUTHENTICATED.to_owned());
        Some(User { name: text(&claims["sub"]).to_owned(), groups })
    }

    /// HMAC-SHA-256 (RFC 2104).
    fn sign(&self, message: &[u8]) -> [u8; 32] {
        let pad = |with: u8| -> [u8; BLOCK] {
            std::array::from_fn(|i| self.key.get(i).copied().unwrap_or_default() ^ with)
        };
        let inner = Sha256::new().chain_update(pad(0x36)).chain_update(message).finalize();
        Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().into()
    }
}

/// How long a token lives if the request does not say, and the least it may say, in seconds.
const DEFAULT_SECONDS: i64 = 3600;
const LEAST_SECONDS: i64 = 600;

/// Answers a `TokenRequest` for a service account.
pub(crate) fn answer_token_request(
    authenticator: &Authenticator,
    account: &Value,
    mut request: Value,
    now: Timestamp,
) -> Result<Value, Status> {
    let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(DEFAULT_SECONDS);
    if seconds < LEAST_SECONDS {
        let error = FieldError::invalid(
            &FieldPath::new("spec.expirationSeconds"),
            seconds,
            "may not specify a duration less than 10 minutes",
        );
        let name = text(&account["metadata"]["name"]);
        let kind = ResourceName { group: "authentication.k8s.io", resource: "TokenRequest", name };
        return Err(Status::invalid(kind, &[error]));
    }
    let audiences: Vec<&str> = items(&request["spec"]["audiences"]).iter().map(text).collect();
    let token = authenticator.issue(account, &audiences, now, seconds);
    let end = now.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
    set(&mut request, &["status"], json!({"token": token, "expirationTimestamp": stamp(end)}));
    Ok(request)
}

/// Comparison whose duration tells nothing about where the difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}
