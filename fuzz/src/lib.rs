//! One target for each parser of outside bytes.
//!
//! ```text
//!   targets! ──name, function, seeds──┬─▶ a test for each: seeds and mutations of them, with the stable compiler   (CI)
//!                                     └─▶ fuzz_targets/NAME.rs: cargo-fuzz, guided by coverage                  (by hand)
//! ```
//!
//! A target is a function from bytes that panics when a property does not hold: what is accepted is written back the same, a
//! second time changes nothing, a refusal has words. Parsers that are private are reached through their crate's `fuzzing`
//! feature, which holds the properties too.
//!
//! A failing input is printed as a byte string. Paste it into the seeds of its target, so that it stays fixed. A fault that ends the
//! process, such as an overflow of the stack, is found with `GANTRY_FUZZ_TRACE=1` and one thread: the last line is its input.

mod cli;
mod core;
mod input;
mod lab;
#[cfg(test)]
mod mutate;
mod run;
mod wire;

pub use run::replay;

/// A parser, the properties that are to hold, and inputs to begin with.
struct Target {
    name: &'static str,
    check: fn(&[u8]),
    #[cfg(test)]
    seeds: &'static [&'static [u8]],
}

/// The table, and a test for each of its rows.
macro_rules! targets {
    ($($name:ident: $check:path, [$($seed:expr),* $(,)?];)*) => {
        const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            check: $check,
            #[cfg(test)]
            seeds: &[$($seed),*],
        }),*];

        #[cfg(test)]
        mod tests {
            $(#[test]
            fn $name() {
                crate::run::tested::seeds_and_mutations(stringify!($name));
            })*
        }
    };
}

/// The program of one target: libfuzzer's under cargo-fuzz, otherwise one that replays the files in its arguments.
#[macro_export]
macro_rules! fuzz_main {
    ($name:ident) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::check(stringify!($name), data));

        #[cfg(not(fuzzing))]
        fn main() -> std::io::Result<()> {
            $crate::replay(stringify!($name))
        }
    };
}

/// Runs one target over one input.
pub fn check(name: &str, data: &[u8]) {
    (target(name).check)(data);
}

fn target(name: &str) -> &'static Target {
    TARGETS
        .iter()
        .find(|target| target.name == name)
        .expect("invariant: a program is named after a row of the table")
}

targets! {
    quantity: core::quantity, [b"1.5Gi", b"-100m", b"1e3", b"12E-2", b"9223372036854775807", b".5u", b"+1Ki"];
    times: core::times, [b"\0\0\0\0\x68\xad\x9f\x10", b"2025-08-26T10:34:56.000001Z", b"2000-02-29T00:00:00+01:30", b"1h30m0.5s"];
    selector: core::selector, [b"a=b,c!=d", b"a in (b, c),!x", b"n>3,n<9", b"metadata.name=x,spec.nodeName!=y", b"a notin (b)"];
    jsonpath: core::jsonpath, [b".status.conditions[?(@.type==\"Ready\")].status", b".a['b.c'][0].d", b"{.spec}", b".a[*]"];
    patch: core::patch, [
        b"{\"a\":{\"b\":[1,2]}}\0[{\"op\":\"add\",\"path\":\"/a/b/-\",\"value\":3},{\"op\":\"test\",\"path\":\"/a/b/2\",\"value\":3}]",
        b"{\"a\":1,\"b\":{\"c\":2}}\0{\"a\":null,\"b\":{\"d\":[{}]}}",
        b"{\"a\":1}\0[{\"op\":\"move\",\"from\":\"/a\",\"path\":\"/a~1b\"},{\"op\":\"copy\",\"from\":\"\",\"path\":\"/c\"}]",
    ];
    strategic_merge: core::strategic_merge, [
        b"{\"spec\":{\"containers\":[{\"name\":\"a\",\"image\":\"x\"}]}}\0{\"spec\":{\"containers\":[{\"name\":\"a\",\"image\":\"y\"},{\"name\":\"b\"}]}}",
        b"{\"spec\":{\"containers\":[{\"name\":\"a\"}]}}\0{\"spec\":{\"containers\":[{\"name\":\"a\",\"$patch\":\"delete\"}],\"$setElementOrder/containers\":[{\"name\":\"b\"}]}}",
        b"{\"metadata\":{\"finalizers\":[\"a\",\"b\"]}}\0{\"metadata\":{\"$deleteFromPrimitiveList/finalizers\":[\"a\"]},\"spec\":{\"$retainKeys\":[\"x\"]}}",
    ];
    fields_v1: core::fields_v1, [
        b"{\"f:spec\":{\".\":{},\"f:ports\":{\"k:{\\\"port\\\":10,\\\"protocol\\\":\\\"TCP\\\"}\":{\".\":{},\"f:name\":{}},\"v:1.5\":{},\"i:3\":{}},\"z:\":{}}}",
        b"{\"k:{\\\"a\\\":[{}],\\\"b\\\":null}\":{\"f:\":{}},\"v:\\\"x\\\"\":{}}",
    ];
    schema: core::schema, [
        b"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":1,\"default\":3},\"b\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^x\"}}},\"required\":[\"a\"]}\0{\"a\":0,\"b\":[\"y\",1],\"c\":{}}",
        b"{\"type\":\"object\",\"x-kubernetes-preserve-unknown-fields\":true,\"additionalProperties\":{\"x-kubernetes-int-or-string\":true}}\0{\"a\":\"5%\",\"b\":null}",
        b"{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"}},\"x-kubernetes-validations\":[{\"rule\":\"self.n > 1\",\"message\":\"m\"}]}\0{\"n\":1}",
    ];
    protobuf: core::protobuf, [
        b"\n\x09\n\x02v1\x12\x03Pod\x12\x0b\n\t\n\x01p\x1a\x04dflt",
        b"\n\x09\n\x02v1\x12\x03Pod\x12\x19\n\x07\n\x01p\x1a\x02ns\x12\x0e\x12\x0c\n\x01c\x12\x01i2\x04\x00\x01\x02\x03",
    ];
    builtin_check: core::builtin_check, [
        b"{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"p\",\"labels\":{\"a\":\"b\"}},\"spec\":{\"containers\":[{\"name\":\"c\",\"image\":\"i\",\"resources\":{\"limits\":{\"nvidia.com/gpu\":1}},\"ports\":[{\"containerPort\":80}]}],\"x\":1}}",
    ];
    dialect: core::dialect, [
        b"{\"metadata\":{\"name\":\"p\",\"namespace\":\"d\",\"uid\":\"u\",\"annotations\":{}},\"spec\":{\"schedulerName\":\"gantry\",\"containers\":[{\"name\":\"c\",\"resources\":{\"limits\":{\"nvidia.com/gpu\":\"2\",\"cpu\":\"100m\"}}}],\"nodeSelector\":{\"a\":\"b\"}}}",
    ];
    node: core::node, [
        b"{\"metadata\":{\"name\":\"n\",\"labels\":{\"a\":\"b\"}},\"spec\":{\"taints\":[{\"key\":\"k\",\"value\":\"v\",\"effect\":\"NoSchedule\"}],\"unschedulable\":true},\"status\":{\"allocatable\":{\"cpu\":\"8\",\"memory\":\"64Gi\",\"nvidia.com/gpu\":\"8\",\"pods\":110},\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}",
    ];
    assignment: wire::assignment, [
        b"{\"v\":1,\"node\":\"gpu-0\",\"containers\":{\"main\":[\"GPU-b\",\"GPU-a\"]}}",
    ];
    gpu_node: wire::gpu_node, [
        b"{\"gpus\":[{\"id\":\"GPU-a\",\"index\":0,\"minor\":0,\"product\":\"A100\",\"memoryMiB\":81920,\"pciBusId\":\"0000:07:00.0\",\"computeCapability\":\"8.0\",\"health\":\"Healthy\"},{\"id\":\"GPU-b\",\"index\":1,\"minor\":1,\"product\":\"A100\",\"memoryMiB\":1,\"pciBusId\":\"\",\"numaNode\":1,\"computeCapability\":\"9.0\",\"health\":\"Unhealthy\",\"fault\":{\"kind\":\"Xid\",\"xid\":79,\"message\":\"m\"}}],\"links\":[{\"kind\":\"NV12\",\"gbPerSecond\":600,\"pairs\":[\"0-1\"]}]}",
    ];
    nvidia_config: wire::nvidia_config, [
        b"version: v1\nflags:\n  migStrategy: mixed\n  plugin: {deviceListStrategy: [envvar, cdi-cri], passDeviceSpecs: true}\n  gfd: {sleepInterval: 1m30s}\nresources: {gpus: [{pattern: \"*A100*\", name: a100}]}\nsharing:\n  timeSlicing:\n    renameByDefault: true\n    resources:\n    - {name: nvidia.com/gpu, devices: [\"0:1\", 2], replicas: 4}\nimex: {channelIDs: [0]}\n",
        b"version: v1\nflags: {mpsRoot: /run/nvidia/mps}\nsharing: {mps: {resources: [{name: gpu, rename: x, devices: 2, replicas: 2}]}}\n",
    ];
    cdi_name: wire::cdi_name, [b"nvidia.com/gpu=0", b"vendor.com/class.sub=a-b:c"];
    cdi_inject: wire::cdi_inject, [
        b"{\"env\":[\"A=1\"],\"deviceNodes\":[{\"path\":\"/dev/a\",\"type\":\"c\",\"major\":1,\"minor\":2,\"permissions\":\"rw\"}],\"hooks\":[{\"hookName\":\"prestart\",\"path\":\"/x\"}],\"mounts\":[{\"hostPath\":\"/a\",\"containerPath\":\"/b\"}],\"additionalGids\":[5]}\0{\"process\":{\"env\":[\"B=2\"],\"user\":{}},\"mounts\":[],\"linux\":{\"devices\":[]}}",
    ];
    shim_request: wire::shim_request, [
        b"{\"v\":1,\"pod\":{\"namespace\":\"ml\",\"name\":\"train-0\",\"uid\":\"7f3c\"},\"container\":\"main\",\"devices\":[\"slot-3\"],\"annotations\":{\"gantry.dev/assignment\":\"{}\"}}\n",
    ];
    shim_answer: wire::shim_answer, [b"{\"v\":1,\"cdiDevices\":[\"nvidia.com/gpu=0\"]}\n", b"{\"v\":1,\"refused\":\"no\"}\n"];
    shim_granted: wire::shim_granted, [b"gantry.dev/devices.nvidia.com_gpu=slot-3,slot-0\0gantry.dev/devices.a=MIG-0\0x=y", b"gantry.dev/devices.a=a\0gantry.dev/devices.b=b,a"];
    http_path: gantry_apiserver::fuzzing::path, [
        b"/api/v1/namespaces/x/pods/y/log", b"/apis/apps/v1/namespaces/x/deployments/", b"/apis/g.io/v1/things/a%2Fb/status",
        b"/api/v1/namespaces/x/finalize", b"/openapi/v3/apis/apps/v1", b"//api//v1/nodes/%zz/%e9",
    ];
    http_query: gantry_apiserver::fuzzing::query, [
        b"labelSelector=a%3Db%2Cc+in+%28d%29&watch=1&watch=0&limit=&x=%zz&force", b"=&&a=b=c&%00=%",
    ];
    http_accept: gantry_apiserver::fuzzing::accept, [
        b"application/json;as=Table;v=v1;g=meta.k8s.io,application/json;q=0.5, */*;q=0",
        b"application/yaml;q=nan,application/vnd.kubernetes.protobuf", b"text/html",
    ];
    json_body: gantry_apiserver::fuzzing::json, [
        b"{\"a\": 1, \"l\": [{\"x\": 1.5, \"x\": null}], \"a\": {\"b\": \"s\", \"b\": -2}}", b"[1e400, -0, \"\\ud83d\\ude00\", 18446744073709551616]",
    ];
    yaml_body: gantry_apiserver::fuzzing::yaml, [
        b"apiVersion: v1\nkind: Pod\nmetadata:\n  name: \"p\"\n  labels: {a: b, 'c': \"\\u00e9\"}\nspec:\n  containers:\n  - name: c\n    args: [\"-c\", 'it''s']\n    text: |\n      two\n      lines\n",
        b"a: &x [1, 0x10, 0o17, 1.5e3, .inf, ~, null, yes, 'no', 2001-01-01]\nb: *x\nc: >-\n  folded\n  text\n? d\n: e\n",
        b"{\"json\": [true, \"\\n\", {}]}",
    ];
    websocket: gantry_apiserver::fuzzing::websocket, [
        b"\x82\x85\x01\x02\x03\x04\x69\x67\x6f\x68\x6e", b"\x02\x82\x01\x02\x03\x04\x60\x60\x89\x80\0\0\0\0\x80\x81\x01\x02\x03\x04\x62",
        b"\x88\x82\0\0\0\0\x03\xe8", b"\x82\xfe\x00\x80\0\0\0\0xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    ];
    spdy: gantry_apiserver::fuzzing::spdy, [
        b"\x80\x03\0\x01\0\0\0\x31\0\0\0\x01\0\0\0\0\0\0\x78\x01\0\x1b\0\xe4\xff\0\0\0\x01\0\0\0\x0astreamtype\0\0\0\x05stdin\0\0\0\xff\xff",
        b"\0\0\0\x01\x01\0\0\x03abc\x80\x03\0\x06\0\0\0\x04\0\0\0\x07\x80\x03\0\x03\0\0\0\x08\0\0\0\x01\0\0\0\x05\x80\x03\0\x07\0\0\0\x08\0\0\0\0\0\0\0\0",
        b"\0\0\0\x02\0\0\0\x0aStreamType\0\0\0\x05stdin\0\0\0\x01a\0\0\0\0",
    ];
    terminal_size: gantry_apiserver::fuzzing::terminal_size, [b"{\"Width\":80,\"Height\":24}"];
    continue_token: gantry_apiserver::fuzzing::continue_token, [
        b"{\"r\":7,\"ns\":\"d\",\"n\":\"p\"}", b"{\"r\":null,\"ns\":\"\",\"n\":\"\"}", b"eyJyIjo3LCJucyI6ImQiLCJuIjoicCJ9",
    ];
    bearer_token: gantry_apiserver::fuzzing::bearer_token, [
        b"{\"sub\":\"system:serviceaccount:n:a\",\"exp\":9999999999,\"kubernetes.io\":{\"namespace\":\"n\",\"serviceaccount\":{\"name\":\"a\",\"uid\":\"u\"}}}",
        b"eyJhbGciOiJIUzI1NiJ9.e30.AAAA",
    ];
    admission_review: gantry_apiserver::fuzzing::admission_review, [
        b"{\"apiVersion\":\"admission.k8s.io/v1\",\"kind\":\"AdmissionReview\",\"response\":{\"uid\":\"u1\",\"allowed\":true,\"patchType\":\"JSONPatch\",\"patch\":\"W3sib3AiOiJhZGQiLCJwYXRoIjoiL2IiLCJ2YWx1ZSI6Mn1d\",\"warnings\":[\"careful\",\"\"]}}",
        b"{\"apiVersion\":\"admission.k8s.io/v1\",\"kind\":\"AdmissionReview\",\"response\":{\"uid\":\"u1\",\"allowed\":false,\"status\":{\"code\":403,\"reason\":\"Forbidden\",\"message\":\"no\",\"details\":{\"name\":\"x\"}}}}",
    ];
    state_log: gantry_apiserver::fuzzing::state_log, [
        b"{\"r\":1}\0{\"r\":2,\"t\":\"pods\",\"n\":\"d\",\"k\":\"a\",\"o\":{\"metadata\":{\"name\":\"a\",\"namespace\":\"d\"}}}\0{\"r\":3,\"t\":\"pods\",\"n\":\"d\",\"k\":\"a\"}",
        b"\x07\0\0\0\x26\xd1\xf1\x63\x0b\x9f\x7a\x9c{\"r\":1}",
    ];
    cdi_spec: gantry_cdi::fuzzing::spec, [
        b"{\"cdiVersion\":\"1.1.0\",\"kind\":\"vendor.com/class.sub\",\"annotations\":{\"a\":\"b\"},\"devices\":[{\"name\":\"0\",\"containerEdits\":{\"env\":[\"A=1\"],\"deviceNodes\":[{\"path\":\"/dev/a\",\"hostPath\":\"/dev/b\",\"type\":\"c\",\"major\":195,\"minor\":0,\"fileMode\":438,\"permissions\":\"rw\",\"uid\":1,\"gid\":2}]}}],\"containerEdits\":{\"hooks\":[{\"hookName\":\"createContainer\",\"path\":\"/x\",\"args\":[\"a\"],\"env\":[\"B=2\"],\"timeout\":3}],\"mounts\":[{\"hostPath\":\"/a\",\"containerPath\":\"/b\",\"options\":[\"ro\"],\"type\":\"bind\"}],\"additionalGids\":[5],\"intelRdt\":{\"closID\":\"x\"},\"netDevices\":[{\"hostInterfaceName\":\"eth0\",\"name\":\"net0\"}]}}",
        b"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n",
    ];
    loader_cache: gantry_driver::fuzzing::loader_cache, [
        b"glibc-ld.so.cache1.1\x02\0\0\0\x30\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x03\x03\0\0\x60\0\0\0\x65\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x03\x03\0\0\x6a\0\0\0\x6f\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0a.so\0/a.s\0b.so\0/b.s\0",
        b"ld.so-1.7.0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0glibc-ld.so.cache1.1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    ];
    shared_library: gantry_driver::fuzzing::shared_library, [
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0\0\0\0\0\0\0\0\0\x40\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x40\0\x38\0\x02\0\0\0\0\0\0\0\
\x01\0\0\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xe6\0\0\0\0\0\0\0\xe6\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\
\x02\0\0\0\x04\0\0\0\xb0\0\0\0\0\0\0\0\xb0\0\0\0\0\0\0\0\xb0\0\0\0\0\0\0\0\x30\0\0\0\0\0\0\0\x30\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\
\x05\0\0\0\0\0\0\0\xe0\0\0\0\0\0\0\0\x0e\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0a.so\0",
    ];
    driver_capabilities: gantry_driver::fuzzing::capabilities, [b"compute,utility", b"all", b" video , ,ngx", b"none"];
    image_requirement: gantry_driver::fuzzing::requirement, [
        b"cuda>=12.4 brand=tesla,driver>=470,driver<471 brand!=geforce,arch==7.5", b"driver<=550.54.15,cuda<99", b"cuda=>1",
        b"NVIDIA_REQUIRE_CUDA=cuda>=1\nCUDA_VERSION=9.0.1\nNVIDIA_DISABLE_REQUIRE=true",
    ];
    driver_texts: gantry_driver::fuzzing::driver_texts, [
        b"550.54.15", b"535.104.05", b"00000000:07:00.0", b"config 1\ngpu0/gi7/ci0/access 67\n",
        b"NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024",
    ];
    agent_checkpoint: gantry_agent::fuzzing::checkpoint, [
        b"{\"version\":1,\"node\":\"node-1\",\"inventory\":{\"gpus\":[{\"id\":\"GPU-a\",\"index\":0,\"minor\":0,\"product\":\"A100\",\"memoryMiB\":81920,\"pciBusId\":\"\",\"computeCapability\":\"8.0\",\"health\":\"Healthy\"},{\"id\":\"GPU-b\",\"index\":1,\"minor\":1,\"product\":\"A100\",\"memoryMiB\":1,\"pciBusId\":\"\",\"computeCapability\":\"8.0\",\"health\":\"Healthy\"}],\"links\":[{\"kind\":\"NV4\",\"gbPerSecond\":100,\"pairs\":[\"0-1\"]}]}}\n{\"slots\":[\"GPU-b\",\"GPU-a\"],\"pods\":[{\"namespace\":\"d\",\"name\":\"p\",\"uid\":\"u\",\"containers\":{\"c\":{\"devices\":[\"slot-0\"],\"gpus\":[\"GPU-b\"]}}}]}\n",
        b"00000000 {\"version\":1}\n00000000 {}\n",
    ];
    fake_nvml_config: lab::fake_nvml_config, [
        b"model: h100\ncount: 8\nnode: n1\nseed: 3\nvisible: device-nodes\ndev: /dev\nstate: /run/s.json\nmissing: [nvmlDeviceGetName]\nmig_needs_reset: true\n",
        b"version: \"1.0\"\nsystem: {driver_version: 550.163.01, cuda_version: \"12.4\"}\ndevice_defaults:\n  name: Tesla T4\n  pci: {device_id: 0x1EB810DE}\n  fan: {speed_percent: \"N/A\"}\ndevices:\n- {index: 1, uuid: GPU-12345678-1234-1234-1234-123456780001, pci: {bus_id: \"0000:0F:00.0\"}, minor_number: 1}\n- {index: 0, minor_number: 0, numa_node: -1}\n",
    ];
    pci_config: gantry_gpu::fuzzing::pci_config, [b"\xde\x10\0\0\0\0\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0@\0\0\0\0\0\0\0\0\0\0\0\x09\0\x1bVF\0\x16460.16\0\0\0\0r460_00\0\0\0"];
    shim_command_line: gantry_oci_shim::fuzzing::command_line, [
        b"--root\0/r\0--log=/l\0--systemd-cgroup\0create\0--bundle\0/b\0c1", b"--log-format\0json\0run\0-b/b\0--\0c1", b"delete\0--force\0create",
    ];
    shim_settings: gantry_oci_shim::fuzzing::settings, [
        b"version = 1\nruntimes = ['runc', '/opt/crun']\nrefused = 'fail'\nspec-dirs = ['/etc/cdi']\nkinds = ['nvidia.com/gpu']\nlog = 'syslog'\nlog-level = \"debug\"\n",
        b"accept-nvidia-visible-devices-envvar-when-unprivileged = true\n[nvidia-container-runtime]\nruntimes = [\"runc\"]\n[nvidia-container-runtime.modes.cdi]\ndefault-kind = \"nvidia.com/gpu\"\n",
    ];
    shim_configuration: gantry_oci_shim::fuzzing::configuration, [
        b"{\"process\":{\"env\":[\"NVIDIA_VISIBLE_DEVICES=all\"],\"x\":1,\"capabilities\":{\"bounding\":[\"CAP_SYS_ADMIN\"]}},\"annotations\":{\"gantry.dev/devices.a\":\"slot-0,GPU-1\",\"io.kubernetes.pod.uid\":\"u\",\"io.kubernetes.pod.name\":\"p\",\"io.kubernetes.pod.namespace\":\"n\",\"io.kubernetes.container.name\":\"c\"}}",
        b"{\"process\":{\"env\":[\"NVIDIA_VISIBLE_DEVICES=none\"]},\"mounts\":[{\"source\":\"/dev/null\",\"destination\":\"/var/run/nvidia-container-devices/GPU-1\"}],\"hooks\":{\"prestart\":[{\"path\":\"/usr/bin/nvidia-container-runtime-hook\"}]},\"linux\":{}}",
    ];
    shim_device_names: gantry_oci_shim::fuzzing::device_names, [b"0,1,all", b"cdi/nvidia.com/gpu/0:1", b"imex/7", b"nvidia.com/gpu=GPU-1", b"../x"];
    nri_frames: gantry_nri::fuzzing::frames, [
        b"\0\0\0\x01\0\0\0\x03abc\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\x01d", b"\0\0\0\x01\0\x40\0\x0b", b"\0\0\0\0\0\0\0\x01",
    ];
    nri_messages: gantry_nri::fuzzing::messages, [
        b"\0\0\0\x02\0\0\0\x01\x01\0ab\0\0\0\0\0\0\0\x03\x02\0\0\0\0\x01\0\0\0\x05\x03\x01c", b"\0\x40\0\x01\0\0\0\x01\x01\0",
    ];
    nri_session: gantry_nri::fuzzing::session, [
        b"\0\x12\x0acontainerd\x1a\x02v2(\xd0\x0f", b"\x01\x0a\x05\x1a\x03uid\x12\x03\x1a\x01c\x18\x01", b"\x02\x0a\x05\x1a\x03uid\x12\x06\x1a\x04main", b"\x03\x08\x02\x12\x05\x1a\x03uid",
        b"\0\0\0\x02\0\0\0\x0c\0\0\0\x02\0\0\0\x01\x02\0\x12\0", b"\0\0\0\x02\0\0\0\x12\0\0\0\x08\0\0\0\x01\x02\0\x0a\x06\x08\x0c\x12\x02no",
    ];
    runtime_configuration: gantry_runtime_config::fuzzing::configuration, [
        b"version = 2\nimports = ['/a/*.toml'] # c\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = 'runc'\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\noptions = { SystemdCgroup = true }\n",
        b"version = 3\n[plugins]\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]\ncontainer_annotations = []\n",
        b"[crio.runtime]\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.crun]\nruntime_path = \"/usr/bin/crun\"\n",
        b"{\n  \"runtimes\": {\"kata\": {\"path\": \"/k\"}},\n  \"features\": {\"cdi\": false}, \"default-runtime\": \"x\"\n}",
    ];
    kubelet_checkpoint: gantry_cluster::fuzzing::checkpoint, [
        b"{\"PodDeviceEntries\":[{\"PodUID\":\"u\",\"ContainerName\":\"c\",\"ResourceName\":\"nvidia.com/gpu\",\"DeviceIDs\":{\"-1\":[\"slot-0\"],\"0\":[\"slot-1\"]},\"AllocResp\":\"CgYKAUESAWIqCAoGYS5iL2M9\"}],\"RegisteredDevices\":{\"nvidia.com/gpu\":[\"slot-0\",\"slot-1\"]}}",
        b"{\"Data\":{\"PodDeviceEntries\":[],\"RegisteredDevices\":{}},\"Checksum\":1}",
    ];
    plugin_registration: gantry_cluster::fuzzing::registration, [
        b"nvidia.com/gpu\na.sock", b"requests.x.io/gpu\n..", b"\n\x07v1beta1\x12\x06a.sock\x1a\x0envidia.com/gpu\"\x02\x08\x01",
    ];
    sim_annotations: gantry_cluster::fuzzing::annotations, [
        b"duration=1h30m\nexit-code=3\nutilization=85\nmemory-used=20Gi", b"duration=forever\nmemory-used=-1Gi\nspeed=1", b"duration=90s5ms",
    ];
    shell_script: gantry_cluster::fuzzing::shell_script, [
        b"echo \"a $NAME ${EMPTY:-b}\" 'c d' | grep -c a && ls /dev || exit 3; true # end", b"A=1 B=$(echo $(pwd)/x) ; export A; echo $? \\\n  >/dev/null 2>&1",
        b"cat /etc/app/config | head -n 1 | wc -l", b"test -f /etc/app/config && [ 1 -lt 2 ] || tail -c 3 /etc/*/conf?g", b"cd /etc; pwd; printenv NAME",
    ];
    nvidia_smi: gantry_cluster::fuzzing::nvidia_smi, [
        b"--query-gpu=index,uuid,memory.used,pstate\n--format=csv,noheader,nounits\n-i\n0,1", b"-q\n-i1", b"topo\n-m", b"-L", b"--query-compute-apps=pid\n--format\ncsv",
        b"-i\n00000000:07:00.0\n-l\n5", b"--help-query-gpu", b"-i\nGPU-00000000-0000-4000-8000-000000000003",
    ];
    volcano_job: gantry_controllers::fuzzing::volcano_job, [
        b"{\"metadata\":{\"name\":\"j\",\"namespace\":\"n\",\"uid\":\"u\"},\"spec\":{\"minAvailable\":2,\"schedulerName\":\"gantry\",\"queue\":\"q\",\"priorityClassName\":\"p\",\"minSuccess\":1,\"tasks\":[{\"replicas\":3,\"minAvailable\":2,\"name\":\"w\",\"template\":{\"metadata\":{\"labels\":{\"a\":\"b\"}},\"spec\":{\"containers\":[]}}},{\"template\":{\"spec\":{}}}]},\"status\":{\"state\":{\"phase\":\"Pending\"}}}",
    ];
    cron_schedule: gantry_workloads::fuzzing::cron_schedule, [
        b"*/15 0-6,12 1,15 jan-MAR mon", b"0 0 29 2 ?", b"@every 1h30m", b"@hourly", b"59/7 */23 31 12 0-6/2", b"TZ=UTC 0 0 * * *",
    ];
    index_ranges: gantry_workloads::fuzzing::index_ranges, [b"0,3-5,7", b"1-4294967295,0", b"5-1,x,2,5-", b"7,1-3,2-4,5"];
    image_program: lab::image_program, [
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0\0\0\0\0\0\0\0\0\x40\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x40\0\x38\0\x01\0\0\0\0\0\0\0\x03\0\0\0\x04\0\0\0\x78\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0/ld\0",
    ];
    image_reference: lab::image_reference, [b"gantry", b"localhost:5000/a/b-c__d.e:x_Y", b"registry.example/team/gantry:1.0"];
    nodes_flag: cli::nodes_flag, [b"a100-80=2,rtx3090=4:2, t4", b"h100=20000:16", b"a100-80"];
    nodes_file: cli::nodes_file, [
        b"nodes:\n- profile: a100-80\n  count: 2\n  gpus: 4\n  labels: {zone: a}\n  taints:\n  - key: k\n    value: v\n    effect: NoSchedule\n- profile: t4\n",
        b"{\"nodes\":[{\"profile\":\"h100\",\"count\":1,\"taints\":[{\"key\":\"a\",\"effect\":\"NoExecute\"}]}]}",
    ];
}

#[cfg(test)]
mod programs {
    use std::fs;
    use std::path::Path;

    use crate::TARGETS;

    #[test]
    fn every_target_has_a_program_and_every_program_a_target() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
        for target in TARGETS {
            let name = target.name;
            let program = format!("#![cfg_attr(fuzzing, no_main)]\n\ngantry_fuzz::fuzz_main!({name});\n");
            let path = format!("fuzz_targets/{name}.rs");
            assert_eq!(fs::read_to_string(root.join(&path)).unwrap_or_default(), program, "{path}");
            let row = format!("[[bin]]\nname = \"{name}\"\npath = \"{path}\"\ntest = false\n");
            assert!(manifest.contains(&row), "Cargo.toml needs\n{row}");
        }
        assert_eq!(fs::read_dir(root.join("fuzz_targets")).unwrap().count(), TARGETS.len());
        assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
    }
}
