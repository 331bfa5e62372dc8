#![cfg_attr(fuzzing, no_main)]

gantry_fuzz::fuzz_main!(fields_v1);
