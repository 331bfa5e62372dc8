//! Registration, device lists, allocation, identity.

use std::collections::BTreeMap;

use gantry_agent::{ContainerIdentity, FolderWatch, IdentityMode};
use gantry_api::{ASSIGNMENT_ANNOTATION, encode_assignment};
use gantry_cdi::Cache;
use gantry_gpu::GpuBackend as _;
use gantry_model::{Assignment, FaultKind, GpuId, PodKey};
use gantry_proto::deviceplugin as api;
use tonic::Code;

use crate::kubelet::{Kubelet, Resource};
use crate::{GPU, Node, start};

fn ids(node: &Node) -> Vec<GpuId> {
    node.gpus.inventory().unwrap().gpus.into_iter().map(|gpu| gpu.id).collect()
}

fn allocate(ids: &[&str]) -> api::AllocateRequest {
    let devices_ids = ids.iter().map(|id| (*id).to_owned()).collect();
    api::AllocateRequest { container_requests: vec![api::ContainerAllocateRequest { devices_ids }] }
}

fn container(pod: &str, devices: &[&str], gpus: &[GpuId]) -> ContainerIdentity {
    let containers = BTreeMap::from([("main".into(), gpus.to_vec())]);
    let text = encode_assignment(&Assignment { node: "node-1".into(), containers });
    ContainerIdentity {
        pod: PodKey { namespace: "default".into(), name: pod.into(), uid: format!("uid-{pod}").into() },
        annotations: BTreeMap::from([(ASSIGNMENT_ANNOTATION.to_owned(), text)]),
        name: "main".into(),
        devices: devices.iter().map(|id| (*id).to_owned()).collect(),
    }
}

#[tokio::test]
async fn the_kubelet_learns_every_device_and_the_log_says_so() {
    let node = Node::new("h100", 8);
    let kubelet = Kubelet::start(&node.plugins());
    let agent = node.start(IdentityMode::Kubelet);
    let resource = kubelet.devices(GPU, 8, 8).await;
    assert_eq!((resource.registrations, resource.endpoint.as_str()), (1, "nvidia-gpu.sock"));
    let expected: Vec<_> = ids(&node).iter().map(ToString::to_string).collect();
    assert!(expected.iter().all(|id| resource.devices.contains_key(id)));
    assert_eq!(expected.iter().map(|id| resource.numa[id]).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1, 1, 1]);
    agent.registered(1).await;
    assert!(agent.log().contains(&"Registered device plugin for 'nvidia.com/gpu' with Kubelet".to_owned()));
    agent.stop().await;
    kubelet.until(|known| !known[GPU].connected).await;
    assert!(!node.plugins().join("nvidia-gpu.sock").exists(), "a plugin that ends takes its socket along");
}

#[tokio::test]
async fn sixteen_gpus_are_chosen_from_at_every_size() {
    let node = Node::new("rtx3090", 16);
    let kubelet = Kubelet::start(&node.plugins());
    let agent = node.start(IdentityMode::Kubelet);
    let resource = kubelet.devices(GPU, 16, 16).await;
    let mut plugin = kubelet.plugin(&resource.endpoint).await;
    let available: Vec<String> = ids(&node).iter().map(ToString::to_string).collect();
    for size in 0..=16 {
        let request = api::PreferredAllocationRequest {
            container_requests: vec![api::ContainerPreferredAllocationRequest {
                available_device_i_ds: available.clone(),
                must_include_device_i_ds: Vec::new(),
                allocation_size: size,
            }],
        };
        let answer = plugin.get_preferred_allocation(request.clone()).await.unwrap().into_inner();
        let again = plugin.get_preferred_allocation(request).await.unwrap().into_inner();
        assert_eq!(answer, again, "the same question has one answer");
        let chosen = &answer.container_responses[0].device_i_ds;
        assert_eq!(chosen.len(), usize::try_from(size).unwrap());
        if size == 2 {
            let position = |id: &String| available.iter().position(|known| known == id).unwrap();
            assert_eq!(
                position(&chosen[0]) / 2,
                position(&chosen[1]) / 2,
                "the two ends of one NVLink bridge"
            );
        }
    }
    let request = api::PreferredAllocationRequest {
        container_requests: vec![api::ContainerPreferredAllocationRequest {
            available_device_i_ds: available,
            must_include_device_i_ds: Vec::new(),
            allocation_size: 17,
        }],
    };
    let error = plugin.get_preferred_allocation(request).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert_eq!(
        error.message(),
        "preferred allocation of 17 devices out of 16, 0 of them required: fewer are available than asked for"
    );
    agent.stop().await;
}

#[tokio::test]
async fn an_allocation_names_the_cdi_device_that_was_written() {
    let node = Node::new("a100-40", 4);
    let kubelet = Kubelet::start(&node.plugins());
    let agent = node.start(IdentityMode::Kubelet);
    let resource = kubelet.devices(GPU, 4, 4).await;
    let mut plugin = kubelet.plugin(&resource.endpoint).await;
    let gpus = ids(&node);
    let answer = plugin.allocate(allocate(&[gpus[3].as_str(), gpus[3].as_str()])).await.unwrap().into_inner();
    let names: Vec<_> = answer.container_responses[0].cdi_devices.iter().map(|d| d.name.clone()).collect();
    assert_eq!(names, [format!("k8s.device-plugin.nvidia.com/gpu={}", gpus[3])]);
    let cache = Cache::load(&[node.root.path().join("cdi")]);
    let mut config = serde_json::json!({});
    cache.inject(&mut config, &[names[0].parse().unwrap()]).unwrap();
    assert!(config.to_string().contains("/dev/nvidia3") && !config.to_string().contains("/dev/nvidia0"));

    let error = plugin.allocate(allocate(&[gpus[0].as_str(), "GPU-unknown"])).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert!(error.message().contains("\"GPU-unknown\""), "{}", error.message());
    node.gpus.fault(1, FaultKind::DoubleBitEcc).unwrap();
    kubelet.devices(GPU, 4, 3).await;
    let error = plugin.allocate(allocate(&[gpus[0].as_str(), gpus[1].as_str()])).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.message().contains(gpus[1].as_str()), "{}", error.message());
    agent.stop().await;
}

#[tokio::test]
async fn health_flows_both_ways_and_touches_no_other_card() {
    let node = Node::new("a100-80", 8);
    let kubelet = Kubelet::start(&node.plugins());
    let agent = node.start(IdentityMode::Assignment);
    kubelet.devices(GPU, 8, 8).await;
    for (index, fault) in [(2, FaultKind::Xid(79)), (5, FaultKind::Lost), (7, FaultKind::RowRemapPending)] {
        node.gpus.fault(index, fault).unwrap();
    }
    let hurt = kubelet.devices(GPU, 8, 5).await;
    let bad: Vec<_> = hurt.devices.iter().filter(|(_, h)| *h == api::UNHEALTHY).map(|(id, _)| id).collect();
    assert_eq!(bad, ["slot-2", "slot-5", "slot-7"]);
    node.gpus.fault(0, FaultKind::Xid(31)).unwrap();
    for index in [2, 5, 7] {
        node.gpus.recover(index).unwrap();
    }
    kubelet.devices(GPU, 8, 8).await;
    assert!(agent.log().iter().any(|line| line.contains("XID 31") && line.contains("stays in service")));
    agent.stop().await;
}

#[tokio::test]
async fn every_stream_sees_every_change_and_a_closed_one_takes_nothing_away() {
    let node = Node::new("l4", 2);
    let kubelet = Kubelet::start(&node.plugins());
    let agent = node.start(IdentityMode::Assignment);
    let resource = kubelet.devices(GPU, 2, 2).await;
    let mut plugin = kubelet.plugin(&resource.endpoint).await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut stream = plugin.list_and_watch(api::Empty {}).await.unwrap().into_inner();
        assert_eq!(stream.message().await.unwrap().unwrap().devices.len(), 2);
        streams.push(stream);
    }
    drop(streams.pop());
    for healthy in [1, 2] {
        if healthy == 1 {
            node.gpus.fault(0, FaultKind::Xid(48)).unwrap();
        } else {
            node.gpus.recover(0).unwrap();
        }
        for stream in &mut streams {
            let list = stream.message().await.unwrap().unwrap();
            assert_eq!(list.devices.iter().filter(|d| d.health == api::HEALTHY).count(), healthy);
        }
        kubelet.devices(GPU, 2, healthy).await;
    }
    agent.stop().await;
}

#[tokio::test]
async fn a_storm_of_kubelet_restarts_ends_registered() {
    let node = Node::new("t4", 4);
    let agent = node.start(IdentityMode::Assignment);
    for round in 0..12 {
        let kubelet = Kubelet::start(&node.plugins());
        // Half of them die before the plugin has come.
        if round % 2 == 0 {
            kubelet.devices(GPU, 4, 4).await;
        }
        kubelet.kill().await;
    }
    let kubelet = Kubelet::start(&node.plugins());
    kubelet.devices(GPU, 4, 4).await;
    agent.stop().await;
}

#[tokio::test]
async fn the_plugin_may_come_first_and_is_patient_with_a_kubelet_that_is_not_ready() {
    let node = Node::new("t4", 1);
    std::fs::remove_dir(node.plugins()).unwrap();
    let agent = node.start(IdentityMode::Assignment);
    let kubelet = Kubelet::start_refusing(&node.plugins(), 3);
    let resource = kubelet.devices(GPU, 1, 1).await;
    assert_eq!(resource.registrations, 1);
    assert!(agent.log().iter().any(|line| line.contains("the device manager is not ready; trying again")));
    agent.stop().await;
}

#[tokio::test]
async fn a_stale_kubelet_socket_and_a_stale_own_socket_are_overcome() {
    let node = Node::new("t4", 1);
    let kubelet = Kubelet::start(&node.plugins());
    let first = node.start(IdentityMode::Assignment);
    kubelet.devices(GPU, 1, 1).await;
    first.kill().await;
    kubelet.kill().await;
    assert!(node.plugins().join("kubelet.sock").exists());
    let second = node.start(IdentityMode::Assignment);
    let mut changed = second.handle.logs_changed();
    while !second.log().iter().any(|line| line.contains("trying again")) {
        changed.changed().await.unwrap();
    }
    let kubelet = Kubelet::start(&node.plugins());
    kubelet.devices(GPU, 1, 1).await;
    second.stop().await;
}

#[tokio::test]
async fn a_socket_that_somebody_removes_comes_back() {
    let node = Node::new("t4", 1);
    let kubelet = Kubelet::start(&node.plugins());
    let agent = node.start(IdentityMode::Assignment);
    kubelet.devices(GPU, 1, 1).await;
    std::fs::remove_file(node.plugins().join("nvidia-gpu.sock")).unwrap();
    agent.registered(2).await;
    kubelet.until(|known| known[GPU].registrations == 2 && known[GPU].connected).await;
    agent.stop().await;
}

#[tokio::test]
async fn without_inotify_the_folder_is_polled() {
    let node = Node::new("t4", 1);
    let mut options = node.options(IdentityMode::Assignment);
    // A watch whose runtime has ended watches nothing.
    options.watch = Some(
        std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { FolderWatch::new().unwrap() })
        })
        .join()
        .unwrap(),
    );
    let agent = start(options);
    let kubelet = Kubelet::start(&node.plugins());
    kubelet.devices(GPU, 1, 1).await;
    agent.stop().await;
}

#[tokio::test]
async fn two_resources_live_in_one_folder() {
    let node = Node::new("a30", 2);
    let kubelet = Kubelet::start(&node.plugins());
    let whole = node.start(IdentityMode::Kubelet);
    let mut options = node.options(IdentityMode::Assignment);
    options.resource = "nvidia.com/gpu.shared".into();
    options.watch = None;
    let shared = start(options);
    let is = |resource: &Resource, prefix: &str| resource.devices.keys().all(|id| id.starts_with(prefix));
    let gpus = kubelet.devices(GPU, 2, 2).await;
    assert!(is(&gpus, "GPU-") && gpus.asks_preference);
    let slots = kubelet.devices("nvidia.com/gpu.shared", 2, 2).await;
    assert!(is(&slots, "slot-") && !slots.asks_preference, "which slots are granted makes no difference");
    whole.stop().await;
    kubelet.until(|known| !known[GPU].connected).await;
    kubelet.devices("nvidia.com/gpu.shared", 2, 2).await;
    shared.stop().await;
}

#[tokio::test]
async fn a_plugin_that_was_killed_answers_with_an_error_and_comes_back_without_owners() {
    let node = Node::new("t4", 2);
    let kubelet = Kubelet::start(&node.plugins());
    let agent = node.start(IdentityMode::Assignment);
    let resource = kubelet.devices(GPU, 2, 2).await;
    let mut plugin = kubelet.plugin(&resource.endpoint).await;
    plugin.allocate(allocate(&["slot-0"])).await.unwrap();
    agent.kill().await;
    kubelet.until(|known| !known[GPU].connected).await;
    plugin.allocate(allocate(&["slot-1"])).await.unwrap_err();
    let again = node.start(IdentityMode::Assignment);
    again.registered(1).await;
    assert!(again.handle.in_use().is_empty(), "an allocation alone owns nothing");
    kubelet.until(|known| known[GPU].connected && known[GPU].registrations == 2).await;
    let mut plugin = kubelet.plugin(&resource.endpoint).await;
    plugin.allocate(allocate(&["slot-1"])).await.unwrap();
    plugin.allocate(allocate(&["slot-2"])).await.unwrap_err();
    again.stop().await;
}

#[tokio::test]
async fn the_assignment_reaches_the_container_and_survives_a_restart() {
    let node = Node::new("a100-80", 4);
    let kubelet = Kubelet::start(&node.plugins());
    let agent = node.start(IdentityMode::Assignment);
    let resource = kubelet.devices(GPU, 4, 4).await;
    let gpus = ids(&node);
    let mut plugin = kubelet.plugin(&resource.endpoint).await;
    let answer = plugin.allocate(allocate(&["slot-0", "slot-1"])).await.unwrap().into_inner();
    assert!(answer.container_responses[0].cdi_devices.is_empty(), "a slot is not a GPU yet");
    let wanted = [gpus[2].clone(), gpus[3].clone()];
    let request = container("a", &["slot-0", "slot-1"], &wanted);
    let adjustment = agent.handle.create_container(&request).unwrap();
    assert_eq!(adjustment.gpus, wanted);
    let names: Vec<_> = adjustment.cdi_devices.iter().map(ToString::to_string).collect();
    assert_eq!(names, wanted.each_ref().map(|id| format!("k8s.device-plugin.nvidia.com/gpu={id}")));

    agent.kill().await;
    kubelet.until(|known| !known[GPU].connected).await;
    node.gpus.fault(2, FaultKind::Xid(94)).unwrap();
    let agent = node.start(IdentityMode::Assignment);
    let after = kubelet.until(|known| known[GPU].connected && known[GPU].healthy() == 3).await;
    assert_eq!(after[GPU].devices["slot-0"], api::UNHEALTHY, "the slot in front of GPU 2");
    let other = container("b", &["slot-2"], &[gpus[3].clone()]);
    let error = agent.handle.create_container(&other).unwrap_err().to_string();
    assert!(error.contains("default/b") && error.contains("belongs to pod default/a"), "{error}");
    agent.handle.remove_pod("uid-a");
    assert_eq!(agent.handle.create_container(&other).unwrap().gpus, [gpus[3].clone()]);
    agent.handle.synchronize(&std::collections::BTreeSet::new());
    assert!(agent.handle.in_use().is_empty());
    agent.stop().await;
}

#[tokio::test]
async fn a_corrupt_checkpoint_is_set_aside_and_work_goes_on() {
    let node = Node::new("t4", 2);
    let folder = node.root.path().join("state");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("nvidia-gpu.checkpoint"), "{\"version\":1,").unwrap();
    let kubelet = Kubelet::start(&node.plugins());
    let agent = node.start(IdentityMode::Assignment);
    kubelet.devices(GPU, 2, 2).await;
    assert!(
        agent.log()[0].starts_with("The checkpoint cannot be used and was moved to "),
        "{:?}",
        agent.log()
    );
    assert!(folder.join("nvidia-gpu.corrupt").exists() && folder.join("nvidia-gpu.checkpoint").exists());
    agent.stop().await;
}

#[tokio::test]
async fn a_card_that_is_lost_at_start_costs_one_slot_and_returns() {
    let node = Node::new("h200", 8);
    node.gpus.lose(4).unwrap();
    let kubelet = Kubelet::start(&node.plugins());
    let agent = node.start(IdentityMode::Kubelet);
    let lost = kubelet.devices(GPU, 8, 7).await;
    let id = ids(&node).len();
    assert_eq!(id, 7);
    node.gpus.recover(4).unwrap();
    let back = kubelet.devices(GPU, 8, 8).await;
    assert_eq!(lost.devices.keys().collect::<Vec<_>>(), back.devices.keys().collect::<Vec<_>>());
    assert_eq!(agent.handle.gpus()[4].memory_mib, 143_771);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn virtual_time_changes_nothing() {
    let node = Node::new("b200", 8);
    let kubelet = Kubelet::start_refusing(&node.plugins(), 2);
    let agent = node.start(IdentityMode::Assignment);
    kubelet.devices(GPU, 8, 8).await;
    tokio::time::sleep(std::time::Duration::from_hours(24)).await;
    node.gpus.fault(3, FaultKind::DoubleBitEcc).unwrap();
    let after = kubelet.devices(GPU, 8, 7).await;
    assert_eq!(after.registrations, 1, "a quiet day needs no second registration");
    agent.stop().await;
}

#[tokio::test]
async fn a_hundred_agents_share_one_watch_and_all_follow_their_kubelet() {
    let watch = FolderWatch::new().unwrap();
    let nodes: Vec<_> = (0..100).map(|_| Node::new("t4", 8)).collect();
    let agents: Vec<_> = nodes
        .iter()
        .map(|node| {
            let mut options = node.options(IdentityMode::Assignment);
            options.watch = Some(watch.clone());
            start(options)
        })
        .collect();
    for _ in 0..2 {
        let kubelets: Vec<_> = nodes.iter().map(|node| Kubelet::start(&node.plugins())).collect();
        for kubelet in &kubelets {
            kubelet.devices(GPU, 8, 8).await;
        }
        for kubelet in kubelets {
            kubelet.kill().await;
        }
    }
    for agent in agents {
        agent.stop().await;
    }
}
