//! Protobuf bodies never panic; what is decoded passes the check of its own kind or is told why not.
#![no_main]

use gantry_kubetypes::{PROTOBUF_MAGIC, Types};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut body = PROTOBUF_MAGIC.to_vec();
    body.extend_from_slice(data);
    let _ = gantry_kubetypes::decode(Types::builtin(), &body);
});
