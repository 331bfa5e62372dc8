use super::*;

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn check(group: &str, kind: &str, object: Value, expected: &[(&str, Value)]) {
    let mut object = object;
    object["metadata"]["creationTimestamp"] = "2026-01-01T00:55:00Z".into();
    let columns = columns(group, kind);
    let cells = row(group, kind, &object, now());
    assert_eq!(columns.len(), cells.len(), "{kind}");
    for (name, value) in expected {
        let at = columns
            .iter()
            .position(|column| column["name"] == *name)
            .unwrap_or_else(|| panic!("{kind} {name}"));
        assert_eq!(cells[at], *value, "{kind} {name}");
    }
}

fn pod(status: Value, init: Value) -> Value {
    json!({
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": init},
        "status": status,
    })
}

#[test]
fn the_status_of_a_pod_is_the_word_that_kubectl_users_know() {
    let running = json!({"name": "a", "ready": true, "state": {"running": {}}});
    let completed = json!({"name": "b", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}});
    let cases = [
        ("nothing is known", json!({}), json!([]), "Unknown", "0/2"),
        ("not yet placed", json!({"phase": "Pending"}), json!([]), "Pending", "0/2"),
        (
            "held by a gate",
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}),
            json!([]),
            "SchedulingGated",
            "0/2",
        ),
        (
            "refused by the node",
            json!({"phase": "Failed", "reason": "UnexpectedAdmissionError"}),
            json!([]),
            "UnexpectedAdmissionError",
            "0/2",
        ),
        (
            "the first of two init containers runs",
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}),
            json!([{"name": "i"}, {"name": "j"}]),
            "Init:0/2",
            "0/2",
        ),
        (
            "an init container fails again and again",
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}),
            json!([{"name": "i"}]),
            "Init:CrashLoopBackOff",
            "0/2",
        ),
        (
            "an init container was killed",
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 137, "signal": 9}}}]}),
            json!([{"name": "i"}]),
            "Init:Signal:9",
            "0/2",
        ),
        (
            "a container waits",
            json!({"phase": "Pending", "containerStatuses": [running.clone(), {"name": "b", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}),
            json!([]),
            "ImagePullBackOff",
            "1/2",
        ),
        (
            "a container failed without a reason",
            json!({"phase": "Failed", "containerStatuses": [{"name": "a", "state": {"terminated": {"exitCode": 3}}}]}),
            json!([]),
            "ExitCode:3",
            "0/2",
        ),
        (
            "one container ended, the other runs",
            json!({"phase": "Running", "containerStatuses": [completed.clone(), running.clone()]}),
            json!([]),
            "NotReady",
            "1/2",
        ),
        (
            "a sidecar is ready besides the containers",
            json!({"phase": "Running", "containerStatuses": [running.clone(), running.clone()],
                "initContainerStatuses": [{"name": "s", "started": true, "ready": true, "state": {"running": {}}}]}),
            json!([{"name": "s", "restartPolicy": "Always"}]),
            "Running",
            "3/3",
        ),
    ];
    for (case, status, init, word, ready) in cases {
        let object = pod(status, init);
        assert_eq!(pod::status(&object, now()), word, "{case}");
        assert_eq!(pod::ready(&object, now()), ready, "{case}");
    }
}

#[test]
fn a_pod_that_is_being_deleted_says_so_until_it_has_ended() {
    for (phase, word) in [("Running", "Terminating"), ("Pending", "Terminating"), ("Succeeded", "Succeeded")]
    {
        let mut object = pod(json!({"phase": phase}), json!([]));
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:59:00Z".into();
        assert_eq!(pod::status(&object, now()), word);
    }
}

#[test]
fn restarts_tell_when_the_last_one_was() {
    let last = json!({"terminated": {"finishedAt": "2026-01-01T00:55:00Z"}});
    let object = pod(
        json!({"containerStatuses": [
            {"name": "a", "restartCount": 2, "lastState": last, "state": {"running": {}}},
            {"name": "b", "restartCount": 1, "state": {"running": {}}},
        ]}),
        json!([]),
    );
    assert_eq!(pod::restarts(&object, now()), "3 (5m ago)");
    assert_eq!(pod::restarts(&pod(json!({}), json!([])), now()), "0");
}

#[test]
fn nodes_show_readiness_cordon_roles_and_addresses() {
    let node = json!({
        "metadata": {"name": "n", "labels": {
            "node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/gpu": "", "kubernetes.io/role": "worker",
        }},
        "spec": {"unschedulable": true},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "nodeInfo": {"kubeletVersion": "v1.34.0"},
        },
    });
    check(
        "",
        "Node",
        node,
        &[
            ("Status", json!("Ready,SchedulingDisabled")),
            ("Roles", json!("gpu,worker")),
            ("Version", json!("v1.34.0")),
            ("Age", json!("5m")),
            ("Internal-IP", json!("10.0.0.1")),
            ("External-IP", json!("<none>")),
            ("OS-Image", json!("<unknown>")),
        ],
    );
    check("", "Node", json!({}), &[("Status", json!("Unknown")), ("Roles", json!("<none>"))]);
}

#[test]
fn workloads_show_progress() {
    let template =
        json!({"spec": {"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]}});
    check(
        "apps",
        "Deployment",
        json!({"spec": {"replicas": 3, "template": template, "selector": {"matchLabels": {"app": "w"},
            "matchExpressions": [{"key": "tier", "operator": "In", "values": ["x", "y"]}]}},
            "status": {"readyReplicas": 2, "updatedReplicas": 3}}),
        &[
            ("Ready", json!("2/3")),
            ("Up-to-date", json!(3)),
            ("Available", json!(0)),
            ("Containers", json!("a,b")),
            ("Images", json!("x,y")),
            ("Selector", json!("app=w,tier in (x,y)")),
        ],
    );
    check(
        "batch",
        "Job",
        json!({"spec": {"completions": 4}, "status": {"succeeded": 1, "startTime": "2026-01-01T00:59:30Z"}}),
        &[("Status", json!("Running")), ("Completions", json!("1/4")), ("Duration", json!("30s"))],
    );
    check(
        "batch",
        "Job",
        json!({"spec": {"parallelism": 2}, "status": {"conditions": [{"type": "Complete", "status": "True"}],
            "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:07Z"}}),
        &[("Status", json!("Complete")), ("Completions", json!("0/1 of 2")), ("Duration", json!("7s"))],
    );
    check(
        "batch",
        "CronJob",
        json!({"spec": {"schedule": "* * * * *"}}),
        &[("Timezone", json!("<none>")), ("Suspend", json!("False")), ("Last Schedule", json!("<none>"))],
    );
}

#[test]
fn autoscalers_show_each_metric_with_its_target() {
    let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}});
    let queue =
        json!({"type": "External", "external": {"metric": {"name": "q"}, "target": {"averageValue": "30"}}});
    let pods = json!({"type": "Pods", "pods": {"metric": {"name": "r"}, "target": {"averageValue": "1k"}}});
    let current =
        json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 30}}});
    for (metrics, status, expected) in [
        (json!([]), json!([]), "<none>"),
        (json!([cpu]), json!([]), "cpu: <unknown>/80%"),
        (json!([cpu, queue]), json!([current]), "cpu: 30%/80%, <unknown>/30 (avg)"),
        (json!([cpu, queue, pods]), json!([current]), "cpu: 30%/80%, <unknown>/30 (avg) + 1 more..."),
    ] {
        check(
            "autoscaling",
            "HorizontalPodAutoscaler",
            json!({"spec": {"metrics": metrics, "scaleTargetRef": {"kind": "Deployment", "name": "w"}},
                "status": {"currentMetrics": status}}),
            &[
                ("Targets", json!(expected)),
                ("Reference", json!("Deployment/w")),
                ("MinPods", json!("<unset>")),
            ],
        );
    }
}

#[test]
fn services_show_how_they_are_reached() {
    let ports = json!([{"port": 80, "protocol": "TCP"}, {"port": 53, "nodePort": 30053, "protocol": "UDP"}]);
    for (spec, status, external) in [
        (json!({"type": "ClusterIP", "ports": ports}), json!({}), "<none>"),
        (json!({"type": "LoadBalancer", "ports": ports}), json!({}), "<pending>"),
        (
            json!({"type": "LoadBalancer", "ports": ports, "externalIPs": ["2.2.2.2"]}),
            json!({"loadBalancer": {"ingress": [{"ip": "1.1.1.1"}]}}),
            "1.1.1.1,2.2.2.2",
        ),
        (
            json!({"type": "ExternalName", "externalName": "example.com", "ports": ports}),
            json!({}),
            "example.com",
        ),
    ] {
        check(
            "",
            "Service",
            json!({"spec": spec, "status": status}),
            &[("External-IP", json!(external)), ("Port(s)", json!("80/TCP,53:30053/UDP"))],
        );
    }
    let address = |n: u8| json!({"ip": format!("10.0.0.{n}")});
    check(
        "",
        "Endpoints",
        json!({"subsets": [{"addresses": [address(1), address(2), address(3), address(4)], "ports": [{"port": 80}]}]}),
        &[("Endpoints", json!("10.0.0.1:80,10.0.0.2:80,10.0.0.3:80 + 1 more..."))],
    );
    check("", "Endpoints", json!({}), &[("Endpoints", json!("<none>"))]);
}

#[test]
fn events_show_when_they_were_last_seen_whichever_field_says_it() {
    let object = json!({"kind": "Pod", "name": "p"});
    for (event, seen) in [
        (json!({"involvedObject": object, "lastTimestamp": "2026-01-01T00:59:30Z"}), "30s"),
        (
            json!({"involvedObject": object, "lastTimestamp": null, "eventTime": "2026-01-01T00:59:00.000000Z"}),
            "60s",
        ),
        (
            json!({"regarding": object, "series": {"lastObservedTime": "2026-01-01T00:59:59Z", "count": 4}}),
            "1s",
        ),
    ] {
        check("", "Event", event, &[("Last Seen", json!(seen)), ("Object", json!("pod/p"))]);
    }
}

#[test]
fn quotas_and_claims_show_use() {
    check(
        "",
        "ResourceQuota",
        json!({"status": {"hard": {"requests.nvidia.com/gpu": "4", "limits.cpu": "8"}, "used": {"requests.nvidia.com/gpu": "1"}}}),
        &[("Request", json!("requests.nvidia.com/gpu: 1/4")), ("Limit", json!("limits.cpu: 0/8"))],
    );
    for (claim, state) in [
        (json!({}), "pending"),
        (json!({"status": {"allocation": {}}}), "allocated"),
        (json!({"status": {"allocation": {}, "reservedFor": [{}]}}), "allocated,reserved"),
    ] {
        check("resource.k8s.io", "ResourceClaim", claim, &[("State", json!(state))]);
    }
}

#[test]
fn every_kind_prints_an_empty_object_and_unknown_kinds_print_name_and_age() {
    for printer in PRINTERS {
        let definitions = columns(printer.group, printer.kind);
        assert_eq!(row(printer.group, printer.kind, &json!({}), now()).len(), definitions.len());
        assert_eq!(
            definitions.iter().filter(|column| column["format"] == "name").count(),
            1,
            "{}",
            printer.kind
        );
    }
    check("x.io", "Thing", json!({"metadata": {"name": "t"}}), &[("Name", json!("t")), ("Age", json!("5m"))]);
    assert_eq!(columns("x.io", "Thing").len(), 2);
}

proptest::proptest! {
    #[test]
    fn objects_of_any_shape_have_a_row(
        key in "spec|status|metadata|webhooks|subsets|data",
        inner in "conditions|containerStatuses|metrics|ports|containers|x",
        number in proptest::num::i64::ANY,
        shape in 0..5,
    ) {
        let leaf = match shape {
            0 => json!(number),
            1 => json!([number, null, {"a": []}]),
            2 => json!("x"),
            3 => Value::Null,
            _ => json!({"name": number}),
        };
        let object = json!({key: {inner: leaf}});
        for printer in PRINTERS {
            proptest::prop_assert_eq!(row(printer.group, printer.kind, &object, now()).len(), printer.columns.len());
        }
    }
}
