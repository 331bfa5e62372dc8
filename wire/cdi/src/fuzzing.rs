//! Private parsers, with the properties that they keep, for the targets in `fuzz/`.

use crate::cache::parse;
use crate::{DeviceName, Spec};

/// A specification file that is accepted is written as one that says the same, and its devices have names.
pub fn spec(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for is_json in [true, false] {
        match parse(&text, is_json) {
            Ok(spec) => accepted(&spec),
            Err(message) => assert!(!message.is_empty()),
        }
    }
}

fn accepted(spec: &Spec) {
    for device in &spec.devices {
        let name = DeviceName::new(&spec.kind, &device.name).expect("what is accepted can be asked for");
        assert_eq!(name.to_string().parse().ok(), Some(name));
    }
    let text = serde_json::to_string(spec).expect("a specification is JSON");
    assert_eq!(parse(&text, true).as_ref(), Ok(spec));
    let mut config = serde_json::json!({});
    // Edits that cannot be applied are refused with words; nothing else may happen.
    if let Err(error) = crate::apply(&spec.container_edits, &mut config) {
        assert!(!error.to_string().is_empty());
    }
}
