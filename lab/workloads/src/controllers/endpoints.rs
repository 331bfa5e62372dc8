//! Service: EndpointSlices, and the older Endpoints, for the pods that it selects.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::json::{Fields as _, controller_reference, merge_diff, string_map};
use crate::kinds::Kind;
use crate::plan::{Create, Delete, Patch, Plan};
use crate::pod::Pod;
use crate::store::Ref;

/// The label that ties an EndpointSlice to its Service.
pub(crate) const SERVICE_LABEL: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslice-controller.k8s.io";
const HEADLESS: &str = "service.kubernetes.io/headless";
/// Endpoints in one slice, as kube-controller-manager has it by default.
const PER_SLICE: usize = 100;
/// Addresses in one Endpoints object; what is above is left out, as Kubernetes does.
const PER_ENDPOINTS: usize = 1000;

/// What is observed of a Service.
pub(crate) struct Observed<'a> {
    pub(crate) service: &'a Value,
    /// The pods that it selects.
    pub(crate) pods: &'a [Arc<Pod>],
    /// Its EndpointSlices.
    pub(crate) slices: &'a [Arc<Value>],
    pub(crate) endpoints: Option<&'a Value>,
    /// The zone that a node is in.
    pub(crate) zone: &'a dyn Fn(&str) -> Option<String>,
}

/// What to do for a Service.
pub(crate) fn plan(observed: &Observed<'_>) -> Plan {
    let mut plan = Plan::default();
    let service = observed.service;
    let has_selector = service.at("/spec/selector").as_object().is_some_and(|selector| !selector.is_empty());
    if service.is_deleting() || !has_selector || service.text("/spec/type") == "ExternalName" {
        return plan;
    }
    let mut by_ports: BTreeMap<String, (Vec<Value>, Vec<Value>)> = BTreeMap::new();
    for pod in observed.pods.iter().filter(|pod| !pod.has_ended() && !pod.ips.is_empty()) {
        let ports = ports(service, pod);
        let (_, endpoints) = by_ports.entry(json!(ports).to_string()).or_insert_with(|| (ports, Vec::new()));
        endpoints.push(endpoint(observed, pod));
    }
    if by_ports.is_empty() {
        // A Service without pods has one empty slice, so that it is seen to be looked after.
        by_ports.insert(String::new(), (Vec::new(), Vec::new()));
    }
    slices(observed, by_ports.into_values().collect(), &mut plan);
    endpoints(observed, &mut plan);
    plan
}

fn publishes_unready(service: &Value) -> bool {
    service.flag("/spec/publishNotReadyAddresses")
}

/// The Service's ports with the numbers that they have in the pod. A named port that the pod lacks is left out.
fn ports(service: &Value, pod: &Pod) -> Vec<Value> {
    let ports = service.list("/spec/ports").iter().filter_map(|port| {
        let protocol = Some(port.text("/protocol")).filter(|p| !p.is_empty()).unwrap_or("TCP");
        let target = port.at("/targetPort");
        let number = match (target.as_i64(), target.as_str()) {
            (Some(number), _) if number > 0 => number,
            (_, Some(name)) if !name.is_empty() => match name.parse() {
                Ok(number) => number,
                Err(_) => {
                    pod.ports.iter().find(|port| port.name == name && port.protocol == protocol)?.number
                }
            },
            _ => port.int("/port")?,
        };
        let mut entry = json!({"name": port.text("/name"), "port": number, "protocol": protocol});
        if !port.text("/appProtocol").is_empty() {
            entry["appProtocol"] = port.at("/appProtocol").clone();
        }
        Some(entry)
    });
    ports.collect()
}

fn endpoint(observed: &Observed<'_>, pod: &Pod) -> Value {
    let serving = pod.ready;
    let ready = publishes_unready(observed.service) || (serving && !pod.deleting);
    let mut endpoint = json!({
        "addresses": [pod.ips[0]],
        "conditions": {"ready": ready, "serving": serving, "terminating": pod.deleting},
        "targetRef": target(pod),
    });
    if !pod.node.is_empty() {
        endpoint["nodeName"] = pod.node.clone().into();
        if let Some(zone) = (observed.zone)(&pod.node) {
            endpoint["zone"] = zone.into();
        }
    }
    if !pod.hostname.is_empty() && pod.subdomain == observed.service.name() {
        endpoint["hostname"] = pod.hostname.clone().into();
    }
    endpoint
}

fn target(pod: &Pod) -> Value {
    json!({"kind": "Pod", "namespace": &*pod.id.namespace, "name": &*pod.id.name, "uid": pod.uid})
}

/// Brings the slices to what is wanted: endpoints stay where they are, new ones fill the gaps.
fn slices(observed: &Observed<'_>, wanted: Vec<(Vec<Value>, Vec<Value>)>, plan: &mut Plan) {
    let service = observed.service;
    let family = match service.text("/spec/ipFamilies/0") {
        "IPv6" => "IPv6",
        _ => "IPv4",
    };
    let labels = labels(service);
    let mut known: Vec<&Arc<Value>> =
        observed.slices.iter().filter(|slice| slice.label(MANAGED_BY) == Some(MANAGER)).collect();
    let (mut patches, mut creates) = (Vec::new(), Vec::new());
    for (ports, endpoints) in wanted {
        let mut open: BTreeMap<String, Value> = endpoints
            .into_iter()
            .map(|endpoint| (endpoint.text("/targetRef/uid").to_owned(), endpoint))
            .collect();
        let (ours, others): (Vec<_>, Vec<_>) =
            known.into_iter().partition(|slice| slice.list("/ports") == ports.as_slice());
        known = others;
        let mut kept: Vec<(&Arc<Value>, Vec<Value>)> = Vec::new();
        for slice in ours {
            let staying = slice.list("/endpoints").iter();
            let staying = staying.filter_map(|endpoint| open.remove(endpoint.text("/targetRef/uid")));
            kept.push((slice, staying.collect()));
        }
        let mut open: Vec<Value> = open.into_values().collect();
        open.sort_by(|a, b| a.text("/targetRef/name").cmp(b.text("/targetRef/name")));
        let mut open = open.into_iter().peekable();
        for (_, endpoints) in &mut kept {
            let room = PER_SLICE.saturating_sub(endpoints.len());
            endpoints.extend(open.by_ref().take(room));
        }
        let mut needs_one = kept.iter().all(|(_, endpoints)| endpoints.is_empty()) && open.peek().is_none();
        for (slice, endpoints) in kept {
            if endpoints.is_empty() && !std::mem::take(&mut needs_one) {
                known.push(slice);
                continue;
            }
            let have = json!({
                "endpoints": slice.list("/endpoints"), "metadata": {"labels": slice.labels()},
            });
            let want = json!({"endpoints": endpoints, "metadata": {"labels": labels}});
            if let Some(patch) = merge_diff(&have, &want) {
                patches.push(Patch::new(Kind::EndpointSlice, &id(slice), patch));
            }
        }
        while open.peek().is_some() || needs_one {
            needs_one = false;
            let endpoints: Vec<Value> = open.by_ref().take(PER_SLICE).collect();
            let object = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "generateName": format!("{}-", service.name()), "namespace": service.namespace(),
                    "labels": labels,
                    "ownerReferences": [controller_reference(Kind::Service, service)],
                },
                "addressType": family, "endpoints": endpoints, "ports": ports,
            });
            creates.push(Create::new(Kind::EndpointSlice, object));
        }
    }
    plan.patches(patches);
    plan.creates(creates);
    plan.deletes(
        known.iter().map(|slice| Delete::new(Kind::EndpointSlice, &id(slice), slice.uid())).collect(),
    );
}

fn id(object: &Value) -> Ref {
    Ref::new(object.namespace(), object.name())
}

fn labels(service: &Value) -> BTreeMap<String, String> {
    let mut labels = string_map(service.at("/metadata/labels"));
    labels.insert(SERVICE_LABEL.to_owned(), service.name().to_owned());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if service.text("/spec/clusterIP") == "None" {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels
}

fn endpoints(observed: &Observed<'_>, plan: &mut Plan) {
    let service = observed.service;
    let mut subsets: BTreeMap<String, Value> = BTreeMap::new();
    let serving = observed.pods.iter().filter(|pod| {
        !pod.has_ended() && !pod.ips.is_empty() && (!pod.deleting || publishes_unready(service))
    });
    for pod in serving.take(PER_ENDPOINTS) {
        let mut ports = ports(service, pod);
        for port in &mut ports {
            if port.text("/name").is_empty()
                && let Some(port) = port.as_object_mut()
            {
                port.remove("name");
            }
        }
        if ports.is_empty() && service.text("/spec/clusterIP") != "None" {
            continue;
        }
        let mut address = json!({"ip": pod.ips[0], "targetRef": target(pod)});
        if !pod.node.is_empty() {
            address["nodeName"] = pod.node.clone().into();
        }
        if !pod.hostname.is_empty() && pod.subdomain == service.name() {
            address["hostname"] = pod.hostname.clone().into();
        }
        let list = if pod.ready || publishes_unready(service) { "addresses" } else { "notReadyAddresses" };
        let subset = subsets
            .entry(json!(ports).to_string())
            .or_insert_with(|| if ports.is_empty() { json!({}) } else { json!({"ports": ports}) });
        match subset.get_mut(list).and_then(Value::as_array_mut) {
            Some(addresses) => addresses.push(address),
            None => subset[list] = json!([address]),
        }
    }
    let subsets: Vec<Value> = subsets.into_values().collect();
    let mut labels = string_map(service.at("/metadata/labels"));
    labels.insert("endpoints.kubernetes.io/managed-by".to_owned(), "endpoint-controller".to_owned());
    if service.text("/spec/clusterIP") == "None" {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    let Some(known) = observed.endpoints else {
        let object = json!({
            "apiVersion": "v1", "kind": "Endpoints",
            "metadata": {"name": service.name(), "namespace": service.namespace(), "labels": labels},
            "subsets": subsets,
        });
        plan.create(Create { may_exist: true, ..Create::new(Kind::Endpoints, object) });
        return;
    };
    let have = json!({"subsets": known.list("/subsets"), "metadata": {"labels": known.labels()}});
    let want = json!({"subsets": subsets, "metadata": {"labels": labels}});
    if let Some(patch) = merge_diff(&have, &want) {
        plan.patch(Patch::new(Kind::Endpoints, &id(known), patch));
    }
}

/// What to do when a Service is gone. Its slices have an owner and are collected; its Endpoints have none.
pub(crate) fn gone(endpoints: Option<&Value>) -> Plan {
    let mut plan = Plan::default();
    let ours = endpoints.filter(|endpoints| {
        endpoints.label("endpoints.kubernetes.io/managed-by") == Some("endpoint-controller")
            && !endpoints.is_deleting()
    });
    plan.deletes(ours.iter().map(|ours| Delete::new(Kind::Endpoints, &id(ours), ours.uid())).collect());
    plan
}

#[cfg(test)]
mod tests {
    use super::super::pods::make;
    use super::*;
    use crate::plan::read::{created, lines};

    fn service(spec: Value) -> Value {
        let mut service = json!({
            "metadata": {"name": "web", "namespace": "ml", "uid": "s"},
            "spec": {
                "selector": {"app": "web"}, "clusterIP": "10.96.0.9",
                "ports": [{"name": "http", "port": 80, "targetPort": "web"}],
            },
        });
        for (key, value) in spec.as_object().into_iter().flatten() {
            service["spec"][key] = value.clone();
        }
        service
    }

    fn pod(name: &str, ip: &str, ready: bool, port: i64) -> Arc<Pod> {
        let status = if ready { "True" } else { "False" };
        make::pod(
            name,
            json!({
                "spec": {"nodeName": "n1", "containers": [{"ports": [{"name": "web", "containerPort": port}]}]},
                "status": {"phase": "Running", "podIPs": [{"ip": ip}],
                           "conditions": [{"type": "Ready", "status": status}]},
            }),
        )
    }

    fn run(service: &Value, pods: &[Arc<Pod>], slices: &[Arc<Value>], endpoints: Option<&Value>) -> Plan {
        let zone = |_: &str| Some("z1".to_owned());
        plan(&Observed { service, pods, slices, endpoints, zone: &zone })
    }

    /// Runs until nothing is left to do, starting from nothing.
    fn settled(service: &Value, pods: &[Arc<Pod>]) -> (Vec<Arc<Value>>, Value) {
        let plan = run(service, pods, &[], None);
        let (slices, endpoints): (Vec<&Value>, Vec<&Value>) =
            created(&plan).into_iter().partition(|object| object.text("/kind") == "EndpointSlice");
        let slices = slices.into_iter().enumerate().map(|(n, slice)| {
            let mut slice = slice.clone();
            slice["metadata"]["name"] = format!("web-{n}").into();
            slice["metadata"]["uid"] = format!("slice-{n}").into();
            Arc::new(slice)
        });
        (slices.collect(), endpoints[0].clone())
    }

    #[test]
    fn slices_and_endpoints_tell_who_is_ready_at_which_port() {
        let pods = [pod("a", "10.0.0.1", true, 8080), pod("b", "10.0.0.2", false, 8080)];
        let (slices, endpoints) = settled(&service(json!({})), &pods);
        let slice = &slices[0];
        assert_eq!(slice["ports"], json!([{"name": "http", "port": 8080, "protocol": "TCP"}]));
        let ready: Vec<bool> =
            slice.list("/endpoints").iter().map(|endpoint| endpoint.flag("/conditions/ready")).collect();
        assert_eq!(ready, [true, false]);
        assert_eq!(slice["endpoints"][0]["zone"], "z1");
        assert_eq!(endpoints["subsets"][0]["addresses"][0]["ip"], "10.0.0.1");
        assert_eq!(endpoints["subsets"][0]["notReadyAddresses"][0]["ip"], "10.0.0.2");
        let quiet = run(&service(json!({})), &pods, &slices, Some(&endpoints));
        assert_eq!(lines(&quiet), Vec::<String>::new());
    }

    #[test]
    fn endpoints_stay_in_their_slice_and_new_ones_fill_the_gaps() {
        let pods: Vec<Arc<Pod>> =
            (0..250).map(|n| pod(&format!("p{n:03}"), &format!("10.0.1.{n}"), true, 80)).collect();
        let (slices, endpoints) = settled(&service(json!({})), &pods);
        let sizes: Vec<usize> = slices.iter().map(|slice| slice.list("/endpoints").len()).collect();
        assert_eq!(sizes, [100, 100, 50]);
        let mut pods = pods;
        pods[10] = pod("new", "10.0.2.1", true, 80);
        let plan = run(&service(json!({})), &pods, &slices, Some(&endpoints));
        let touched: Vec<String> = lines(&plan)
            .iter()
            .filter(|line| line.contains("EndpointSlice"))
            .map(|line| line.split(' ').take(3).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(touched, ["patch EndpointSlice web-0"]);
    }

    #[test]
    fn pods_with_other_numbers_for_a_named_port_have_slices_of_their_own() {
        let pods = [pod("a", "10.0.0.1", true, 8080), pod("b", "10.0.0.2", true, 9090)];
        let (slices, endpoints) = settled(&service(json!({})), &pods);
        assert_eq!(slices.len(), 2);
        assert_eq!(endpoints.list("/subsets").len(), 2);
    }

    #[test]
    fn a_service_without_pods_has_an_empty_slice_and_one_without_selector_nothing() {
        let (slices, endpoints) = settled(&service(json!({})), &[]);
        assert_eq!((slices.len(), slices[0].list("/endpoints").len()), (1, 0));
        assert_eq!(endpoints["subsets"], json!([]));
        assert!(run(&service(json!({"selector": null})), &[], &[], None).is_quiet());
        assert!(run(&service(json!({"type": "ExternalName"})), &[], &[], None).is_quiet());
    }

    #[test]
    fn unready_addresses_are_published_where_that_is_asked_for() {
        let headless = json!({"publishNotReadyAddresses": true, "clusterIP": "None", "ports": []});
        let (slices, endpoints) = settled(&service(headless), &[pod("a", "10.0.0.1", false, 80)]);
        assert!(slices[0].flag("/endpoints/0/conditions/ready"));
        assert_eq!(slices[0].label(HEADLESS), Some(""));
        assert_eq!(endpoints["subsets"][0]["addresses"][0]["ip"], "10.0.0.1");
    }
}
