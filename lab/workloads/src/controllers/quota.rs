//! ResourceQuota: what a namespace uses of what it may. That nobody gets more is the API server's to see to.

use std::collections::BTreeMap;
use std::sync::Arc;

use gantry_units::Quantity;
use serde_json::{Map, Value, json};

use crate::json::{Fields as _, status_diff};
use crate::kinds::Kind;
use crate::plan::{Patch, Plan};
use crate::pod::Pod;
use crate::store::{Ref, Store};

/// What one pod takes of a quota.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Usage {
    requests: BTreeMap<String, Quantity>,
    limits: BTreeMap<String, Quantity>,
    best_effort: bool,
    has_deadline: bool,
    priority_class: String,
    has_cross_affinity: bool,
}

impl Usage {
    /// What a pod asks for: its containers and sidecars together, or an init container that asks for more.
    pub(crate) fn of_pod(pod: &Value) -> Self {
        let requests = effective(pod, "requests");
        let limits = effective(pod, "limits");
        let counts = |map: &BTreeMap<String, Quantity>| {
            map.iter().any(|(name, amount)| matches!(name.as_str(), "cpu" | "memory") && amount.value() > 0)
        };
        let affinity = ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
            let terms = pod.at(&format!("/spec/affinity/{kind}"));
            let required = terms.list("/requiredDuringSchedulingIgnoredDuringExecution").iter();
            let preferred = terms.list("/preferredDuringSchedulingIgnoredDuringExecution").iter();
            let terms = required.chain(preferred.map(|term| term.at("/podAffinityTerm")));
            terms
                .into_iter()
                .any(|term| !term.list("/namespaces").is_empty() || !term.at("/namespaceSelector").is_null())
        });
        Self {
            best_effort: !counts(&requests) && !counts(&limits),
            has_deadline: pod.int("/spec/activeDeadlineSeconds").is_some(),
            priority_class: pod.text("/spec/priorityClassName").to_owned(),
            has_cross_affinity: affinity,
            requests,
            limits,
        }
    }
}

fn amounts(container: &Value, kind: &str) -> BTreeMap<String, Quantity> {
    let entries = container.at("/resources").get(kind).and_then(Value::as_object).into_iter().flatten();
    let parsed = entries.filter_map(|(name, amount)| {
        let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
        Some((name.clone(), text.parse().ok()?))
    });
    parsed.collect()
}

fn add(total: &mut BTreeMap<String, Quantity>, more: &BTreeMap<String, Quantity>) {
    for (name, amount) in more {
        let sum = match total.get(name) {
            Some(known) => known.checked_add(*amount).unwrap_or(*known),
            None => *amount,
        };
        total.insert(name.clone(), sum);
    }
}

fn at_least(total: &mut BTreeMap<String, Quantity>, other: &BTreeMap<String, Quantity>) {
    for (name, amount) in other {
        if total.get(name).is_none_or(|known| known < amount) {
            total.insert(name.clone(), *amount);
        }
    }
}

fn effective(pod: &Value, kind: &str) -> BTreeMap<String, Quantity> {
    let mut total = BTreeMap::new();
    for container in pod.list("/spec/containers") {
        add(&mut total, &amounts(container, kind));
    }
    let (mut sidecars, mut peak) = (BTreeMap::new(), BTreeMap::new());
    for container in pod.list("/spec/initContainers") {
        let mut own = amounts(container, kind);
        if container.text("/restartPolicy") == "Always" {
            add(&mut sidecars, &own);
            own = BTreeMap::new();
        }
        add(&mut own, &sidecars);
        at_least(&mut peak, &own);
    }
    add(&mut total, &sidecars);
    at_least(&mut total, &peak);
    if let Some(overhead) = pod.at("/spec").get("overhead") {
        let wrapped = json!({"resources": {kind: overhead}});
        let overhead = amounts(&wrapped, kind);
        let named = overhead.into_iter().filter(|(name, _)| kind == "requests" || total.contains_key(name));
        let named = named.collect();
        add(&mut total, &named);
    }
    total
}

/// What to do for a quota, where `count` tells how many objects of a resource (`pods`, `deployments.apps`) the
/// namespace has, as far as that is known.
pub(crate) fn plan(quota: &Value, pods: &[Arc<Pod>], count: &dyn Fn(&str) -> Option<i64>) -> Plan {
    let mut plan = Plan::default();
    if quota.is_deleting() {
        return plan;
    }
    let pods: Vec<&Arc<Pod>> =
        pods.iter().filter(|pod| !pod.has_ended() && in_scope(quota, &pod.usage)).collect();
    let hard = quota.at("/spec/hard");
    let mut used = Map::new();
    for name in hard.as_object().into_iter().flatten().map(|(name, _)| name) {
        let amount = amount(name, &pods, count).map(Value::from);
        // What is not known stays what it was.
        let known = quota.at("/status/used").get(name).cloned();
        if let Some(amount) = amount.or(known) {
            used.insert(name.clone(), amount);
        }
    }
    let status = json!({"hard": hard, "used": used});
    if let Some(patch) = status_diff(quota, &status) {
        plan.patch(Patch::status(Kind::ResourceQuota, &Ref::new(quota.namespace(), quota.name()), patch));
    }
    plan
}

/// The amount in use under a name of `spec.hard`, in Kubernetes' form.
fn amount(name: &str, pods: &[&Arc<Pod>], count: &dyn Fn(&str) -> Option<i64>) -> Option<String> {
    let sum = |resource: &str, of: &dyn Fn(&Usage) -> &BTreeMap<String, Quantity>| {
        let mut total: Option<Quantity> = None;
        for amount in pods.iter().filter_map(|pod| of(&pod.usage).get(resource)) {
            total = Some(total.map_or(*amount, |total| total.checked_add(*amount).unwrap_or(total)));
        }
        Some(total.map_or_else(|| "0".to_owned(), |total| total.to_string()))
    };
    if matches!(name, "pods" | "count/pods") {
        return Some(pods.len().to_string());
    }
    if let Some(resource) = name.strip_prefix("count/") {
        return count(resource).map(|count| count.to_string());
    }
    if let Some(resource) = name.strip_prefix("limits.") {
        return sum(resource, &|usage| &usage.limits);
    }
    match name.strip_prefix("requests.") {
        Some("storage") => None,
        Some(resource) => sum(resource, &|usage| &usage.requests),
        None if matches!(name, "cpu" | "memory" | "ephemeral-storage") => sum(name, &|usage| &usage.requests),
        None => count(name).map(|count| count.to_string()),
    }
}

fn in_scope(quota: &Value, usage: &Usage) -> bool {
    let plain = quota.list("/spec/scopes").iter().filter_map(Value::as_str);
    let selected = quota.list("/spec/scopeSelector/matchExpressions");
    let holds = |scope: &str| match scope {
        "BestEffort" => usage.best_effort,
        "NotBestEffort" => !usage.best_effort,
        "Terminating" => usage.has_deadline,
        "NotTerminating" => !usage.has_deadline,
        "CrossNamespacePodAffinity" => usage.has_cross_affinity,
        _ => !usage.priority_class.is_empty(),
    };
    plain.into_iter().all(holds)
        && selected.iter().all(|expression| {
            let listed = || {
                expression.list("/values").iter().any(|v| v.as_str() == Some(usage.priority_class.as_str()))
            };
            match expression.text("/operator") {
                "In" => listed(),
                "NotIn" => !listed(),
                "DoesNotExist" => !holds(expression.text("/scopeName")),
                _ => holds(expression.text("/scopeName")),
            }
        })
}

/// How many objects of a resource, named as in `services` or `deployments.apps`, a namespace has. `None` for
/// resources that no controller here knows.
pub(crate) fn count(store: &Store, namespace: &str, resource: &str) -> Option<i64> {
    let services = |test: &dyn Fn(&Value) -> i64| {
        Some(store.in_namespace(Kind::Service, namespace).map(|service| test(service)).sum())
    };
    match resource {
        "services.loadbalancers" => {
            return services(&|service| i64::from(service.text("/spec/type") == "LoadBalancer"));
        }
        "services.nodeports" => {
            return services(&|service| {
                let ports = service.list("/spec/ports").iter();
                let count = match service.text("/spec/type") {
                    "NodePort" => ports.count(),
                    "LoadBalancer" => {
                        ports.filter(|port| port.int("/nodePort").is_some_and(|p| p > 0)).count()
                    }
                    _ => 0,
                };
                i64::try_from(count).unwrap_or(i64::MAX)
            });
        }
        _ => {}
    }
    let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
    let kind = Kind::all().find(|kind| kind.plural() == plural && kind.group() == group)?;
    i64::try_from(store.in_namespace(kind, namespace).count()).ok()
}

#[cfg(test)]
mod tests {
    use super::super::pods::make;
    use super::*;
    use crate::plan::read::status;

    fn pod(name: &str, spec: Value) -> Arc<Pod> {
        make::pod(name, json!({"spec": spec, "status": {"phase": "Running"}}))
    }

    fn container(requests: Value) -> Value {
        json!({"resources": {"requests": requests}})
    }

    #[test]
    fn used_is_the_sum_of_what_pods_ask_for() {
        let quota = json!({
            "metadata": {"name": "q", "namespace": "ml"},
            "spec": {"hard": {"pods": "10", "requests.cpu": "4", "memory": "1Gi", "requests.nvidia.com/gpu": "8",
                              "limits.cpu": "1", "count/deployments.apps": "3", "count/widgets": "1"}},
        });
        let init = json!([
            {"resources": {"requests": {"cpu": "100m"}}, "restartPolicy": "Always"},
            container(json!({"cpu": "2"})),
        ]);
        let pods = [
            pod(
                "a",
                json!({"containers": [container(json!({"cpu": "500m", "nvidia.com/gpu": "2"})),
                                           container(json!({"memory": "64Mi"}))]}),
            ),
            pod(
                "b",
                json!({"containers": [container(json!({"cpu": "1", "nvidia.com/gpu": 1}))], "initContainers": init}),
            ),
            make::pod(
                "done",
                json!({"spec": {"containers": [container(json!({"cpu": "9"}))]},
                                     "status": {"phase": "Succeeded"}}),
            ),
        ];
        let count = |resource: &str| (resource == "deployments.apps").then_some(2);
        let plan = plan(&quota, &pods, &count);
        let used = status(&plan).expect("a status").at("/used").clone();
        assert_eq!(
            used,
            json!({"pods": "2", "requests.cpu": "2600m", "memory": "64Mi", "requests.nvidia.com/gpu": "3",
                   "limits.cpu": "0", "count/deployments.apps": "2"})
        );
    }

    #[test]
    fn scopes_choose_the_pods_that_count() {
        let best_effort = pod("a", json!({"containers": [{}]}));
        let urgent =
            pod("b", json!({"containers": [container(json!({"cpu": "1"}))], "priorityClassName": "high"}));
        let select = |operator: &str, values: Value| {
            json!({"scopeSelector": {"matchExpressions": [
                {"scopeName": "PriorityClass", "operator": operator, "values": values},
            ]}})
        };
        for (spec, expect) in [
            (json!({"scopes": ["BestEffort"]}), (true, false)),
            (json!({"scopes": ["NotBestEffort", "NotTerminating"]}), (false, true)),
            (select("In", json!(["high"])), (false, true)),
            (select("NotIn", json!(["high"])), (true, false)),
            (select("Exists", json!([])), (false, true)),
        ] {
            let quota = json!({"spec": spec});
            assert_eq!(
                (in_scope(&quota, &best_effort.usage), in_scope(&quota, &urgent.usage)),
                expect,
                "{quota}"
            );
        }
    }
}
