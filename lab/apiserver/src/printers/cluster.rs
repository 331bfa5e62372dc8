//! Computed columns of everything that is neither a pod nor a workload.

use gantry_units::human_duration;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::cells::{
    age, at_most_three, condition, is_terminating, items, joined, length, number, text, text_or, timestamp,
};

pub(super) fn config_map_data(object: &Value, _: Timestamp) -> Value {
    (length(&object["data"]) + length(&object["binaryData"])).to_string().into()
}

/// The value at `path`, unless the object is on its way out.
pub(super) fn terminating_or(object: &Value, path: &str) -> Value {
    if is_terminating(object) { "Terminating".into() } else { text(super::field(object, path)).into() }
}

// Nodes

pub(super) fn node_status(node: &Value, _: Timestamp) -> Value {
    let ready = match condition(node, "Ready").map(|condition| text(&condition["status"])) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let cordoned = node["spec"]["unschedulable"] == true;
    if cordoned { format!("{ready},SchedulingDisabled") } else { ready.to_owned() }.into()
}

pub(super) fn node_roles(node: &Value, _: Timestamp) -> Value {
    let mut roles: Vec<&str> = node["metadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    joined(roles, ",").into()
}

pub(super) fn node_address(node: &Value, kind: &str) -> Value {
    let address = items(&node["status"]["addresses"]).iter().find(|address| address["type"] == kind);
    address.map_or_else(|| "<none>".to_owned(), |address| text_or(&address["address"], "<none>")).into()
}

// Events

/// The first field that holds a time stamp.
fn first_time<'a>(event: &'a Value, paths: &[&str]) -> &'a Value {
    paths
        .iter()
        .map(|path| super::field(event, path))
        .find(|value| timestamp(value).is_some())
        .unwrap_or(&Value::Null)
}

pub(super) fn event_last_seen(event: &Value, now: Timestamp) -> Value {
    let fields = [
        "series.lastObservedTime",
        "lastTimestamp",
        "deprecatedLastTimestamp",
        "firstTimestamp",
        "deprecatedFirstTimestamp",
        "eventTime",
    ];
    age(first_time(event, &fields), now).into()
}

pub(super) fn event_first_seen(event: &Value, now: Timestamp) -> Value {
    age(first_time(event, &["firstTimestamp", "deprecatedFirstTimestamp", "eventTime"]), now).into()
}

pub(super) fn event_count(event: &Value, _: Timestamp) -> Value {
    let count = ["series.count", "count", "deprecatedCount"]
        .iter()
        .map(|path| number(super::field(event, path)))
        .find(|count| *count > 0);
    count.unwrap_or(1).to_string().into()
}

pub(super) fn event_object(event: &Value, _: Timestamp) -> Value {
    let involved = &event["involvedObject"];
    let object = if involved.is_null() { &event["regarding"] } else { involved };
    let kind = text(&object["kind"]).to_lowercase();
    let name = text(&object["name"]);
    if name.is_empty() { kind } else { format!("{kind}/{name}") }.into()
}

pub(super) fn event_source(event: &Value, _: Timestamp) -> Value {
    let source = if event["source"].is_null() { &event["deprecatedSource"] } else { &event["source"] };
    let component = match text(&source["component"]) {
        "" => text(&event["reportingComponent"]),
        component => component,
    };
    let host = text(&source["host"]);
    if host.is_empty() { component.to_owned() } else { format!("{component}, {host}") }.into()
}

pub(super) fn event_message(event: &Value, _: Timestamp) -> Value {
    let message = if event["message"].is_null() { &event["note"] } else { &event["message"] };
    text(message).trim().into()
}

// Services and what is behind them

pub(super) fn service_external_ip(service: &Value, now: Timestamp) -> Value {
    let spec = &service["spec"];
    let external = items(&spec["externalIPs"]).iter().map(text);
    match text(&spec["type"]) {
        "ExternalName" => text(&spec["externalName"]).into(),
        "LoadBalancer" => {
            let balancer = load_balancer_addresses(service, now);
            let all = joined(Some(text(&balancer)).into_iter().chain(external), ",");
            if all == "<none>" { "<pending>".into() } else { all.into() }
        }
        _ => joined(external, ",").into(),
    }
}

pub(super) fn load_balancer_addresses(object: &Value, _: Timestamp) -> Value {
    let addresses: Vec<&str> = items(&object["status"]["loadBalancer"]["ingress"])
        .iter()
        .map(|ingress| match text(&ingress["ip"]) {
            "" => text(&ingress["hostname"]),
            ip => ip,
        })
        .filter(|address| !address.is_empty())
        .collect();
    addresses.join(",").into()
}

pub(super) fn service_ports(service: &Value, _: Timestamp) -> Value {
    let ports: Vec<String> = items(&service["spec"]["ports"])
        .iter()
        .map(|port| {
            let (outer, node) = (number(&port["port"]), number(&port["nodePort"]));
            let protocol = text_or(&port["protocol"], "TCP");
            if node > 0 { format!("{outer}:{node}/{protocol}") } else { format!("{outer}/{protocol}") }
        })
        .collect();
    joined(ports.iter().map(String::as_str), ",").into()
}

pub(super) fn endpoints(object: &Value, _: Timestamp) -> Value {
    let mut all = Vec::new();
    for subset in items(&object["subsets"]) {
        let addresses = items(&subset["addresses"]);
        let ports = items(&subset["ports"]);
        if ports.is_empty() {
            all.extend(addresses.iter().map(|address| text(&address["ip"]).to_owned()));
        }
        for port in ports {
            all.extend(
                addresses.iter().map(|address| format!("{}:{}", text(&address["ip"]), number(&port["port"]))),
            );
        }
    }
    at_most_three(&all).into()
}

pub(super) fn slice_ports(slice: &Value, _: Timestamp) -> Value {
    let ports: Vec<String> = items(&slice["ports"]).iter().map(|port| text_or(&port["port"], "*")).collect();
    if ports.is_empty() { "<unset>".into() } else { at_most_three(&ports).into() }
}

pub(super) fn slice_endpoints(slice: &Value, _: Timestamp) -> Value {
    let all: Vec<String> = items(&slice["endpoints"])
        .iter()
        .flat_map(|endpoint| items(&endpoint["addresses"]))
        .map(|address| text(address).to_owned())
        .collect();
    if all.is_empty() { "<unset>".into() } else { at_most_three(&all).into() }
}

pub(super) fn ingress_hosts(ingress: &Value, _: Timestamp) -> Value {
    let hosts = joined(items(&ingress["spec"]["rules"]).iter().map(|rule| text(&rule["host"])), ",");
    if hosts == "<none>" { "*".into() } else { hosts.into() }
}

pub(super) fn ingress_ports(ingress: &Value, _: Timestamp) -> Value {
    if items(&ingress["spec"]["tls"]).is_empty() { "80" } else { "80, 443" }.into()
}

pub(super) fn ingress_parameters(class: &Value, _: Timestamp) -> Value {
    let parameters = &class["spec"]["parameters"];
    if parameters.is_null() {
        return "<none>".into();
    }
    let (kind, name) = (text(&parameters["kind"]), text(&parameters["name"]));
    match text(&parameters["apiGroup"]) {
        "" => format!("{kind}/{name}"),
        group => format!("{kind}.{group}/{name}"),
    }
    .into()
}

pub(super) fn api_service_target(object: &Value, _: Timestamp) -> Value {
    let service = &object["spec"]["service"];
    if service.is_null() {
        return "Local".into();
    }
    format!("{}/{}", text(&service["namespace"]), text(&service["name"])).into()
}

pub(super) fn api_service_available(object: &Value, _: Timestamp) -> Value {
    match condition(object, "Available") {
        None => "Unknown".into(),
        Some(condition) if condition["status"] == "True" => "True".into(),
        Some(condition) => format!("{} ({})", text(&condition["status"]), text(&condition["reason"])).into(),
    }
}

// Quotas

/// `used/hard` of each resource: those that limit limits, or all others.
pub(super) fn quota(object: &Value, limits: bool) -> Value {
    let none = Map::new();
    let used = object["status"]["used"].as_object().unwrap_or(&none);
    let hard = object["status"]["hard"].as_object().unwrap_or(&none);
    let parts: Vec<String> = hard
        .iter()
        .filter(|(name, _)| name.starts_with("limits.") == limits)
        .map(|(name, hard)| {
            let used = used.get(name).map_or_else(|| "0".to_owned(), |used| text_or(used, "0"));
            format!("{name}: {used}/{}", text_or(hard, "0"))
        })
        .collect();
    parts.join(", ").into()
}

// Access control

pub(super) fn binding_role(binding: &Value, _: Timestamp) -> Value {
    let role = &binding["roleRef"];
    format!("{}/{}", text(&role["kind"]), text(&role["name"])).into()
}

pub(super) fn binding_subjects(binding: &Value, kind: &str) -> Value {
    let subjects: Vec<String> = items(&binding["subjects"])
        .iter()
        .filter(|subject| subject["kind"] == kind)
        .map(|subject| match text(&subject["namespace"]) {
            "" => text(&subject["name"]).to_owned(),
            namespace => format!("{namespace}/{}", text(&subject["name"])),
        })
        .collect();
    subjects.join(", ").into()
}

pub(super) fn signing_duration(request: &Value, _: Timestamp) -> Value {
    let seconds = request["spec"]["expirationSeconds"].as_i64();
    seconds.map_or_else(|| "<none>".to_owned(), human_duration).into()
}

pub(super) fn signing_condition(request: &Value, _: Timestamp) -> Value {
    let has = |kind| condition(request, kind).is_some();
    let mut states = Vec::new();
    if has("Approved") {
        states.push("Approved");
    }
    if has("Denied") {
        states.push("Denied");
    }
    if has("Failed") {
        states.push("Failed");
    }
    if !text(&request["status"]["certificate"]).is_empty() {
        states.push("Issued");
    }
    if states.is_empty() { "Pending".into() } else { states.join(",").into() }
}

// Storage and devices

/// `RWO,RWX`: the abbreviations that storage people know.
pub(super) fn access_modes(object: &Value, path: &str) -> Value {
    let modes: Vec<&str> = items(super::field(object, path))
        .iter()
        .map(|mode| match text(mode) {
            "ReadWriteOnce" => "RWO",
            "ReadOnlyMany" => "ROX",
            "ReadWriteMany" => "RWX",
            "ReadWriteOncePod" => "RWOP",
            other => other,
        })
        .collect();
    modes.join(",").into()
}

pub(super) fn volume_claim(volume: &Value, _: Timestamp) -> Value {
    let claim = &volume["spec"]["claimRef"];
    if claim.is_null() {
        return "".into();
    }
    format!("{}/{}", text(&claim["namespace"]), text(&claim["name"])).into()
}

pub(super) fn storage_class_name(class: &Value, _: Timestamp) -> Value {
    let name = text(&class["metadata"]["name"]);
    let annotations = &class["metadata"]["annotations"];
    let default = annotations["storageclass.kubernetes.io/is-default-class"] == "true";
    if default { format!("{name} (default)") } else { name.to_owned() }.into()
}

pub(super) fn driver_audiences(driver: &Value, _: Timestamp) -> Value {
    let requests = items(&driver["spec"]["tokenRequests"]);
    if requests.is_empty() {
        return "<unset>".into();
    }
    requests.iter().map(|request| text(&request["audience"])).collect::<Vec<_>>().join(",").into()
}

pub(super) fn driver_modes(driver: &Value, _: Timestamp) -> Value {
    joined(items(&driver["spec"]["volumeLifecycleModes"]).iter().map(text), ",").into()
}

pub(super) fn claim_state(claim: &Value, _: Timestamp) -> Value {
    let mut states = Vec::new();
    if is_terminating(claim) {
        states.push("deleted");
    }
    if claim["status"]["allocation"].is_null() {
        if states.is_empty() {
            states.push("pending");
        }
    } else {
        states.push("allocated");
        if !items(&claim["status"]["reservedFor"]).is_empty() {
            states.push("reserved");
        }
    }
    states.join(",").into()
}
