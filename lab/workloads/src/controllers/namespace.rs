//! What every namespace starts with: a default ServiceAccount, and the certificate of the cluster.

use serde_json::{Value, json};

use crate::json::Fields as _;
use crate::kinds::Kind;
use crate::plan::{Create, Patch, Plan};
use crate::store::Ref;

/// The ServiceAccount of pods that name none.
pub(crate) const DEFAULT_ACCOUNT: &str = "default";
/// The ConfigMap with the certificate authority of the API server.
pub(crate) const ROOT_CA: &str = "kube-root-ca.crt";

/// What to do for a namespace.
pub(crate) fn plan(
    namespace: &Value,
    has_account: bool,
    certificate: Option<&Value>,
    root_ca: Option<&str>,
) -> Plan {
    let mut plan = Plan::default();
    if namespace.is_deleting() || namespace.text("/status/phase") == "Terminating" {
        return plan;
    }
    let mut creates = Vec::new();
    if !has_account {
        creates.push(json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": DEFAULT_ACCOUNT, "namespace": namespace.name()},
        }));
    }
    if let Some(root_ca) = root_ca {
        match certificate {
            None => creates.push(json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {
                    "name": ROOT_CA, "namespace": namespace.name(),
                    "annotations": {"kubernetes.io/description":
                        "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc."},
                },
                "data": {"ca.crt": root_ca},
            })),
            Some(known) if known.at("/data").get("ca.crt").and_then(Value::as_str) != Some(root_ca) => {
                let id = Ref::new(namespace.name(), ROOT_CA);
                plan.patch(Patch::new(Kind::ConfigMap, &id, json!({"data": {"ca.crt": root_ca}})));
            }
            Some(_) => {}
        }
    }
    let creates = creates.into_iter().map(|object| {
        let kind = if object.text("/kind") == "ConfigMap" { Kind::ConfigMap } else { Kind::ServiceAccount };
        Create { may_exist: true, ..Create::new(kind, object) }
    });
    plan.creates(creates.collect());
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::read::lines;

    #[test]
    fn a_namespace_gets_what_it_lacks_unless_it_is_going() {
        let namespace = json!({"metadata": {"name": "ml"}});
        let expect = ["create ServiceAccount default", "create ConfigMap kube-root-ca.crt"];
        assert_eq!(lines(&plan(&namespace, false, None, Some("PEM"))), expect);
        let stale = json!({"data": {"ca.crt": "old"}});
        let expect = ["patch ConfigMap kube-root-ca.crt {\"data\":{\"ca.crt\":\"PEM\"}}"];
        assert_eq!(lines(&plan(&namespace, true, Some(&stale), Some("PEM"))), expect);
        let going = json!({"metadata": {"name": "ml"}, "status": {"phase": "Terminating"}});
        assert!(plan(&going, false, None, Some("PEM")).is_quiet());
    }
}
