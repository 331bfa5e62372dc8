#![cfg_attr(fuzzing, no_main)]

gantry_fuzz::fuzz_main!(fake_nvml_config);
