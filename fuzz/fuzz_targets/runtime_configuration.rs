#![cfg_attr(fuzzing, no_main)]

gantry_fuzz::fuzz_main!(runtime_configuration);
