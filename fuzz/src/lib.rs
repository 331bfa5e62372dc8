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

mod core;
mod input;
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
    cdi_name: wire::cdi_name, [b"nvidia.com/gpu=0", b"vendor.com/class.sub=a-b:c"];
    cdi_inject: wire::cdi_inject, [
        b"{\"env\":[\"A=1\"],\"deviceNodes\":[{\"path\":\"/dev/a\",\"type\":\"c\",\"major\":1,\"minor\":2,\"permissions\":\"rw\"}],\"hooks\":[{\"hookName\":\"prestart\",\"path\":\"/x\"}],\"mounts\":[{\"hostPath\":\"/a\",\"containerPath\":\"/b\"}],\"additionalGids\":[5]}\0{\"process\":{\"env\":[\"B=2\"],\"user\":{}},\"mounts\":[],\"linux\":{\"devices\":[]}}",
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
