//! What the API server decides by looking at the rest of the cluster: the built-in admission plugins, and the
//! addresses of Services.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::{Arc, MutexGuard, PoisonError};

use gantry_apimachinery::{FieldError, FieldPath};
use serde_json::{Value, json};

use crate::Status;
use crate::hooks::TOLERATIONS_FOR_LOST_NODES;
use crate::json::{items, items_mut, map_at, set, set_default, text};
use crate::registry::Resource;
use crate::server::Inner;
use crate::store::{Object, ObjectKey, ResourceId};

/// Completes and checks a new object before any webhook sees it.
pub(crate) fn admit_new(server: &Inner, resource: &Resource, object: &mut Value) -> Result<(), Status> {
    if &*resource.id == "pods" {
        service_account(object);
        tolerate_lost_nodes(object);
        priority(server, resource, object)?;
        container_defaults(server, object);
    }
    Ok(())
}

fn service_account(pod: &mut Value) {
    set_default(pod, &["spec", "serviceAccountName"], "default");
    if text(&pod["spec"]["serviceAccountName"]).is_empty() {
        set(pod, &["spec", "serviceAccountName"], "default");
    }
    let account = pod["spec"]["serviceAccountName"].clone();
    set(pod, &["spec", "serviceAccount"], account);
}

/// Pods stay for five minutes on a node that is lost, unless they say otherwise.
fn tolerate_lost_nodes(pod: &mut Value) {
    let spec = map_at(pod, &["spec"]);
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    if tolerations.is_null() {
        *tolerations = json!([]);
    }
    let Some(list) = tolerations.as_array_mut() else { return };
    for key in TOLERATIONS_FOR_LOST_NODES {
        let tolerated = list.iter().any(|toleration| {
            let effect = text(&toleration["effect"]);
            let named = text(&toleration["key"]);
            (named == key || named.is_empty()) && (effect == "NoExecute" || effect.is_empty())
        });
        if !tolerated {
            list.push(
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
            );
        }
    }
}

/// Turns the name of a priority class into its number.
fn priority(server: &Inner, resource: &Resource, pod: &mut Value) -> Result<(), Status> {
    let id = ResourceId::from("priorityclasses.scheduling.k8s.io");
    let name = text(&pod["spec"]["priorityClassName"]).to_owned();
    let class: Option<Arc<Object>> = if name.is_empty() {
        let (classes, _) = server.store.list(&id, None, None).unwrap_or_default();
        // Of several global defaults the lowest counts, as in Kubernetes.
        classes
            .into_iter()
            .filter(|class| class.value["globalDefault"] == true)
            .min_by_key(|class| class.value["value"].as_i64())
    } else {
        let class = server.store.get(&id, &ObjectKey::new("", &name));
        if class.is_none() {
            let why = format!("no PriorityClass with name {name} was found");
            return Err(resource.forbidden(text(&pod["metadata"]["name"]), &why));
        }
        class
    };
    let value = class.as_ref().and_then(|class| class.value["value"].as_i64()).unwrap_or(0);
    if let Some(given) = pod["spec"]["priority"].as_i64()
        && given != value
    {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
        );
        return Err(resource.forbidden(text(&pod["metadata"]["name"]), &why));
    }
    set(pod, &["spec", "priority"], value);
    let policy = class.as_ref().map_or("", |class| text(&class.value["preemptionPolicy"]));
    set_default(
        pod,
        &["spec", "preemptionPolicy"],
        if policy.is_empty() { "PreemptLowerPriority" } else { policy },
    );
    if let Some(class) = class.filter(|_| name.is_empty()) {
        set(pod, &["spec", "priorityClassName"], class.meta("name"));
    }
    Ok(())
}

/// Requests and limits that the namespace's LimitRanges give to containers without their own.
fn container_defaults(server: &Inner, pod: &mut Value) {
    let id = ResourceId::from("limitranges");
    let namespace = text(&pod["metadata"]["namespace"]).to_owned();
    let (ranges, _) = server.store.list(&id, Some(&namespace), None).unwrap_or_default();
    let limits = ranges.iter().flat_map(|range| items(&range.value["spec"]["limits"]));
    for limit in limits.filter(|limit| limit["type"] == "Container") {
        for list in ["initContainers", "containers"] {
            for container in items_mut(pod.get_mut("spec").and_then(|spec| spec.get_mut(list))) {
                // A limit that the user gives stands for the request, too; the default must not come before it.
                let own = container["resources"]["limits"].clone();
                for (name, quantity) in limit["default"].as_object().into_iter().flatten() {
                    set_default(container, &["resources", "limits", name], quantity.clone());
                }
                for (name, quantity) in limit["defaultRequest"].as_object().into_iter().flatten() {
                    let request = own.get(name).unwrap_or(quantity).clone();
                    set_default(container, &["resources", "requests", name], request);
                }
            }
        }
    }
}

/// `10.96.0.0/16`, of which the first address is the API server's own.
const SERVICE_NETWORK: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 0);
const SERVICE_ADDRESSES: std::ops::Range<u32> = 2..65_535;
const NODE_PORTS: std::ops::RangeInclusive<i64> = 30_000..=32_767;

/// Gives a Service its address and ports; the guard is to be held until the Service is stored.
/// The lowest free ones are taken, so that the same history has the same addresses.
pub(crate) fn allocate<'a>(
    server: &'a Inner,
    resource: &Resource,
    service: &mut Value,
) -> Result<Option<MutexGuard<'a, ()>>, Status> {
    if &*resource.id != "services" || service["spec"]["type"] == "ExternalName" {
        return Ok(None);
    }
    let guard = server.allocations.lock().unwrap_or_else(PoisonError::into_inner);
    let (services, _) = server.store.list(&resource.id, None, None).unwrap_or_default();
    let others: Vec<&Value> = services
        .iter()
        .map(|other| &other.value)
        .filter(|other| other["metadata"]["uid"] != service["metadata"]["uid"])
        .collect();
    let mut errors = Vec::new();
    allocate_address(service, &others, &mut errors);
    if matches!(text(&service["spec"]["type"]), "NodePort" | "LoadBalancer") {
        allocate_ports(service, &others, &mut errors);
    }
    if errors.is_empty() {
        Ok(Some(guard))
    } else {
        Err(resource.invalid(text(&service["metadata"]["name"]), &errors))
    }
}

fn allocate_address(service: &mut Value, others: &[&Value], errors: &mut Vec<FieldError>) {
    let taken: BTreeSet<&str> = others.iter().map(|other| text(&other["spec"]["clusterIP"])).collect();
    let given = text(&service["spec"]["clusterIP"]).to_owned();
    if given == "None" {
        set_default(service, &["spec", "clusterIPs"], json!(["None"]));
        return;
    }
    let path = FieldPath::new("spec.clusterIPs");
    if !given.is_empty() {
        let within = given
            .parse::<Ipv4Addr>()
            .is_ok_and(|address| address.octets()[..2] == SERVICE_NETWORK.octets()[..2]);
        let problem = if taken.contains(given.as_str()) {
            "provided IP is already allocated"
        } else if !within {
            "the provided IP is not in the valid range. The range of valid IPs is 10.96.0.0/16"
        } else {
            return;
        };
        let rule = format!("failed to allocate IP {given}: {problem}");
        errors.push(FieldError::invalid(&path, json!([given]), rule));
        return;
    }
    let base = u32::from(SERVICE_NETWORK);
    let free =
        SERVICE_ADDRESSES.map(|n| Ipv4Addr::from(base + n).to_string()).find(|a| !taken.contains(a.as_str()));
    match free {
        Some(address) => {
            set(service, &["spec", "clusterIP"], address.as_str());
            set(service, &["spec", "clusterIPs"], json!([address]));
        }
        None => errors.push(FieldError::internal(&path, "failed to allocate a serviceIP: range is full")),
    }
}

fn allocate_ports(service: &mut Value, others: &[&Value], errors: &mut Vec<FieldError>) {
    let port_of = |port: &Value| port["nodePort"].as_i64().filter(|number| *number != 0);
    let mut taken: BTreeSet<(i64, String)> = others
        .iter()
        .flat_map(|other| items(&other["spec"]["ports"]))
        .filter_map(|port| Some((port_of(port)?, text(&port["protocol"]).to_owned())))
        .collect();
    let ports = items_mut(service.get_mut("spec").and_then(|spec| spec.get_mut("ports")));
    for (i, port) in ports.iter_mut().enumerate() {
        let path = FieldPath::new("spec.ports").index(i).child("nodePort");
        let protocol = text(&port["protocol"]).to_owned();
        match port_of(port) {
            Some(number) if !NODE_PORTS.contains(&number) => {
                let rule = "provided port is not in the valid range. The range of valid ports is 30000-32767";
                errors.push(FieldError::invalid(&path, number, rule));
            }
            Some(number) => {
                if !taken.insert((number, protocol)) {
                    errors.push(FieldError::invalid(&path, number, "provided port is already allocated"));
                }
            }
            None => match NODE_PORTS.clone().find(|n| !taken.contains(&(*n, protocol.clone()))) {
                Some(number) => {
                    set(port, &["nodePort"], number);
                    taken.insert((number, protocol));
                }
                None => {
                    errors.push(FieldError::internal(&path, "failed to allocate a nodePort: range is full"));
                }
            },
        }
    }
}
