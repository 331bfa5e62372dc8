//! What is accepted as a quantity prints as the same quantity.
#![no_main]

use gantry_units::Quantity;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(quantity) = text.parse::<Quantity>() {
        assert_eq!(quantity.to_string().parse::<Quantity>().ok(), Some(quantity));
    }
});
