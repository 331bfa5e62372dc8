//! What pods ask of their simulation, with the properties that it keeps, for the targets in `fuzz/`.

use k8s_openapi::api::core::v1::Pod;

use super::simulation::Simulation;

/// Annotations, one on a line with its value after `=`, are within their bounds or named with words.
pub fn annotations(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut pod = Pod::default();
    pod.metadata.annotations = Some(
        text.split('\n')
            .filter_map(|line| line.split_once('='))
            .map(|(key, value)| (format!("sim.gantry.dev/{key}"), value.to_owned()))
            .collect(),
    );
    let count = pod.metadata.annotations.as_ref().map_or(0, std::collections::BTreeMap::len);
    let (simulation, errors) = Simulation::of(&pod);
    assert!((0..=255).contains(&simulation.exit_code) && simulation.utilization_percent <= 100);
    assert!(errors.len() <= count && errors.iter().all(|error| !error.to_string().is_empty()));
}
