#![cfg_attr(fuzzing, no_main)]

gantry_fuzz::fuzz_main!(loader_cache);
