//! What a pod's author should know although the pod is accepted.

use gantry_apimachinery::{FieldPath, read_quantity};
use gantry_model::Advice;
use serde_json::Value;

use crate::GPU_RESOURCE;

/// Variables by which a container chooses GPUs, and which only the container runtime should set.
const VISIBLE_DEVICES: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"];

/// Values of such a variable that ask for no GPU at all: nothing to say against.
const NO_DEVICES: [&str; 3] = ["", "none", "void"];

/// What there is to know about a `Pod` object, in the order of its fields. Of JSON that is no pod nothing is said.
pub fn advice(pod: &Value) -> Vec<Advice> {
    let spec = &pod["spec"];
    let mut advice = Vec::new();
    let mut asks_for_gpus = false;
    for list in ["initContainers", "containers"] {
        for (index, container) in spec[list].as_array().into_iter().flatten().enumerate() {
            let path = FieldPath::new("spec").child(list).index(index);
            let gpus = gpus(container);
            asks_for_gpus |= gpus > 0;
            advice.extend(device_plugin(container));
            advice.extend(devices_by_hand(container, &path));
            if gpus > 0 {
                advice.extend(host_resources(&container["resources"], gpus, &path.child("resources")));
                if container["securityContext"]["privileged"] == true {
                    let field = path.child("securityContext").child("privileged").to_string();
                    advice.push(Advice::AllDevicesVisible { field });
                }
            }
        }
    }
    for (index, volume) in spec["volumes"].as_array().into_iter().flatten().enumerate() {
        let path = volume["hostPath"]["path"].as_str().unwrap_or_default().trim_end_matches('/');
        if path.starts_with("/dev/nvidia") || asks_for_gpus && path == "/dev" {
            advice.push(Advice::AllDevicesVisible { field: format!("spec.volumes[{index}].hostPath") });
        }
    }
    advice
}

fn gpus(container: &Value) -> u32 {
    let limit = &container["resources"]["limits"][GPU_RESOURCE];
    let amount = read_quantity(limit, &FieldPath::root()).ok().map(|amount| amount.value());
    amount.and_then(|amount| u32::try_from(amount).ok()).unwrap_or(0)
}

/// NVIDIA's own image, from whichever registry.
fn device_plugin(container: &Value) -> Option<Advice> {
    let image = container["image"].as_str()?;
    let repository = image.split('@').next()?;
    let last = repository.rsplit('/').next()?;
    let name = last.split(':').next()?;
    (name == "k8s-device-plugin").then(|| Advice::DevicePluginReplaced {
        container: container["name"].as_str().unwrap_or_default().into(),
        image: image.to_owned(),
    })
}

fn devices_by_hand(container: &Value, path: &FieldPath) -> Vec<Advice> {
    let variables = container["env"].as_array().into_iter().flatten().enumerate();
    let by_hand = variables.filter_map(|(index, entry)| {
        let variable = VISIBLE_DEVICES.into_iter().find(|name| entry["name"] == *name)?;
        let value = entry["value"].as_str().filter(|value| !NO_DEVICES.contains(value))?;
        let field = path.child("env").index(index).to_string();
        Some(Advice::DevicesSetByHand { field, variable, value: value.chars().take(80).collect() })
    });
    by_hand.collect()
}

/// CPU and host memory beside GPUs.
fn host_resources(resources: &Value, gpus: u32, path: &FieldPath) -> Option<Advice> {
    let names = |resource: &str| {
        ["limits", "requests"].into_iter().any(|list| resources[list].get(resource).is_some())
    };
    // Whoever gives a limit of memory and says nothing about CPU most likely thinks of the GPU's memory: nobody sizes a
    // process by its memory alone.
    let memory = resources["limits"].get("memory").filter(|_| !names("cpu"));
    if let Some(memory) = memory {
        let value = memory.as_str().map_or_else(|| memory.to_string(), str::to_owned);
        let field = path.child("limits").child("memory").to_string();
        return Some(Advice::MemoryIsHostMemory { field, value: value.chars().take(80).collect(), gpus });
    }
    let missing = match (names("cpu"), names("memory")) {
        (true, true) => return None,
        (true, false) => "memory",
        (false, true) => "cpu",
        (false, false) => "cpu and memory",
    };
    Some(Advice::GpuWithoutCpuOrMemory { field: path.to_string(), missing })
}
