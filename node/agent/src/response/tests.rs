use gantry_gpu::{GpuBackend as _, Profile, SimGpus};
use gantry_model::{Gpu, Health, Partition, PartitionAttributes};

use super::*;
use crate::state::fixture::config;

/// Every answer, under the name of its case. Written from NVIDIA's plugin, by hand.
const GOLDEN: &str = include_str!("../../tests/golden/allocate.txt");

const MINORS: &str = "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu3/gi9/access 138\ngpu3/gi9/ci0/access 139\n";

fn gpus() -> Vec<Gpu> {
    let sim = SimGpus::new(Profile::named("a100-40").unwrap(), 4, "node-1", 7).unwrap();
    let mut gpus = sim.inventory().unwrap().gpus;
    for (gpu, digit) in gpus.iter_mut().zip('0'..) {
        gpu.id = format!("GPU-{digit}0000000-0000-4000-8000-000000000000").parse().unwrap();
    }
    gpus[0].partitions = Some(vec![Partition {
        id: "MIG-00000000-0000-4000-8000-000000000001".parse().unwrap(),
        index: 2,
        profile: "1g.5gb".into(),
        gpu_instance: 1,
        compute_instance: 0,
        start: 0,
        size: 1,
        memory_mib: 4864,
        attributes: PartitionAttributes::default(),
        health: Health::Healthy,
    }]);
    gpus
}

fn host(config: &Config) -> Host {
    let common = if config.plugin.pass_device_specs { COMMON_FILES[..3].to_vec() } else { Vec::new() };
    Host { common, channels: config.imex.channel_ids.clone(), ..Host::look(config, MINORS) }
}

fn answer(text: &str, resource: &str, choose: impl for<'a> Fn(&'a [Gpu]) -> Vec<Part<'a>>) -> String {
    let (config, gpus) = (config(text), gpus());
    let response = response(&config, resource, &choose(&gpus), &host(&config)).unwrap();
    let mut text = super::text(&response);
    // The annotation's key ends in a UUID of no meaning.
    for key in response.annotations.keys() {
        let uuid = key.rsplit('_').next().unwrap();
        assert!(uuid.len() == 36 && uuid.split('-').count() == 5, "{key}");
        text = text.replace(uuid, "UUID");
    }
    text
}

fn whole(gpu: &Gpu) -> Part<'_> {
    Part { gpu, partition: None, is_shared: false }
}

fn partition(gpu: &Gpu) -> Part<'_> {
    Part { gpu, partition: gpu.partitions.as_ref().and_then(|list| list.first()), is_shared: false }
}

fn pair(gpus: &[Gpu]) -> Vec<Part<'_>> {
    vec![whole(&gpus[1]), whole(&gpus[3])]
}

fn mig(gpus: &[Gpu]) -> Vec<Part<'_>> {
    vec![partition(&gpus[0])]
}

fn share(gpus: &[Gpu]) -> Vec<Part<'_>> {
    vec![Part { is_shared: true, ..whole(&gpus[2]) }]
}

#[test]
fn answers_are_those_of_nvidias_plugin_to_the_letter() {
    let gpu = "nvidia.com/gpu";
    let plugin = |plugin: &str| format!("version: v1\nflags: {{plugin: {{{plugin}}}}}");
    let with = |strategy: &str, rest: &str| {
        format!(
            "version: v1\nflags: {{{rest}plugin: {{deviceListStrategy: {strategy}}}}}\nimex: {{channelIDs: [0]}}"
        )
    };
    let mps = "version: v1\nflags: {mpsRoot: /run/nvidia/mps, plugin: {deviceListStrategy: envvar}}\nsharing: {mps: {renameByDefault: true, resources: [{name: gpu, replicas: 4}]}}";
    let cases: Vec<(&str, String)> = vec![
        ("without a strategy", answer("version: v1", gpu, pair)),
        ("envvar", answer(&plugin("deviceListStrategy: envvar"), gpu, pair)),
        (
            "envvar by index",
            answer(&plugin("deviceListStrategy: envvar, deviceIDStrategy: index"), gpu, pair),
        ),
        ("envvar with a channel", answer(&with("envvar", ""), gpu, pair)),
        ("volume-mounts with a channel", answer(&with("volume-mounts", ""), gpu, pair)),
        ("cdi-annotations", answer(&plugin("deviceListStrategy: cdi-annotations"), gpu, pair)),
        (
            "cdi-annotations with another prefix",
            answer(&plugin("deviceListStrategy: cdi-annotations, cdiAnnotationPrefix: x.io/"), gpu, pair),
        ),
        (
            "cdi-cri with features and a channel",
            answer(
                &with("cdi-cri", "gdsEnabled: true, mofedEnabled: true, gdrcopyEnabled: true, "),
                gpu,
                pair,
            ),
        ),
        (
            "all strategies",
            answer(
                &with("[envvar, volume-mounts, cdi-annotations, cdi-cri]", "gdsEnabled: true, "),
                gpu,
                pair,
            ),
        ),
        (
            "device files",
            answer(
                "version: v1\nflags: {nvidiaDevRoot: /run/nvidia/driver, plugin: {deviceListStrategy: envvar, passDeviceSpecs: true}}\nimex: {channelIDs: [0]}",
                gpu,
                pair,
            ),
        ),
        (
            "device files with cdi alone",
            answer(&plugin("deviceListStrategy: cdi-cri, passDeviceSpecs: true"), gpu, pair),
        ),
        (
            "a partition",
            answer(
                &plugin("deviceListStrategy: [envvar, cdi-cri], passDeviceSpecs: true"),
                "nvidia.com/mig-1g.5gb",
                mig,
            ),
        ),
        (
            "a partition by index",
            answer(
                &plugin("deviceListStrategy: [envvar, cdi-cri], deviceIDStrategy: index"),
                "nvidia.com/mig-1g.5gb",
                mig,
            ),
        ),
        ("a share with MPS", answer(mps, "nvidia.com/gpu.shared", share)),
        ("a whole GPU beside MPS", answer(mps, gpu, pair)),
    ];
    let found: Vec<String> = cases.iter().map(|(name, text)| format!("# {name}\n{text}\n")).collect();
    assert_eq!(found.concat(), GOLDEN);
}

#[test]
fn a_partition_without_device_files_is_refused_and_named() {
    let config = config("version: v1\nflags: {plugin: {deviceListStrategy: envvar, passDeviceSpecs: true}}");
    let mut gpus = gpus();
    gpus[0].partitions.as_mut().unwrap()[0].gpu_instance = 5;
    let error =
        response(&config, "nvidia.com/mig-1g.5gb", &[partition(&gpus[0])], &host(&config)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "partition MIG-00000000-0000-4000-8000-000000000001: no device file for GPU instance 5, compute instance 0 of GPU 0 in /proc/driver/nvidia-caps/mig-minors; is the driver's MIG support loaded?"
    );
}

#[test]
fn a_channel_that_is_required_must_be_there() {
    let required = config("version: v1\nimex: {channelIDs: [0], required: true}");
    let host = Host::look(&required, "");
    assert_eq!(host.missing_channel(&required), Some(0), "no test machine has one");
    assert_eq!(host.missing_channel(&config("version: v1\nimex: {channelIDs: [0]}")), None);
}
