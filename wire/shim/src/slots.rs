//! The environment variable that carries a container's slots.

use std::collections::BTreeSet;

use crate::Error;

/// The variable in which the device plugin's answer to `Allocate` names the slots that the kubelet granted a container, separated
/// by commas and in the kubelet's order. A container with devices of several resources has one for each, told apart by
/// an ending: `GANTRY_SLOTS_1`.
///
/// It is a variable, because the kubelet passes on variables alone to every runtime; annotations of a container reach
/// `config.json` only where a runtime's own configuration allows it.
pub const SLOTS_VARIABLE: &str = "GANTRY_SLOTS";

/// The most slots that one container can have: more than any node offers.
pub const MAX_SLOTS: usize = 1024;

/// The variable's value.
pub fn encode_slots<S: AsRef<str>>(slots: &[S]) -> String {
    slots.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join(",")
}

/// The slots that the value of `variable` names. An empty value names none.
///
/// # Errors
/// Where the value is not what [`encode_slots`] writes.
pub fn decode_slots(variable: &str, value: &str) -> Result<Vec<String>, Error> {
    let mut slots = Vec::new();
    add(&mut slots, &mut BTreeSet::new(), variable, value)?;
    Ok(slots)
}

fn add<'a>(
    slots: &mut Vec<String>,
    seen: &mut BTreeSet<&'a str>,
    variable: &str,
    value: &'a str,
) -> Result<(), Error> {
    let variable = || variable.chars().take(80).collect();
    for slot in value.split(',').filter(|_| !value.is_empty()) {
        if !is_slot(slot) {
            return Err(Error::Slot { variable: variable(), slot: slot.chars().take(80).collect() });
        }
        if slots.len() == MAX_SLOTS {
            return Err(Error::TooMany { variable: variable() });
        }
        if !seen.insert(slot) {
            return Err(Error::Twice { variable: variable(), slot: slot.to_owned() });
        }
        slots.push(slot.to_owned());
    }
    Ok(())
}

/// The slots that a container's environment names, in the order of its variables. Of one variable that stands there twice the last
/// counts, as for the process.
///
/// # Errors
/// Where a value is not what [`encode_slots`] writes, or two variables name one slot.
pub fn slots_of<'a>(environment: impl IntoIterator<Item = &'a str>) -> Result<Vec<String>, Error> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    for variable in environment {
        let Some((name, value)) = variable.split_once('=').filter(|(name, _)| carries_slots(name)) else {
            continue;
        };
        match found.iter_mut().find(|(known, _)| *known == name) {
            Some(known) => known.1 = value,
            None => found.push((name, value)),
        }
    }
    let (mut slots, mut seen) = (Vec::new(), BTreeSet::new());
    for (name, value) in found {
        add(&mut slots, &mut seen, name, value)?;
    }
    Ok(slots)
}

fn carries_slots(name: &str) -> bool {
    name.strip_prefix(SLOTS_VARIABLE).is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix('_').is_some_and(|ending| !ending.is_empty())
    })
}

pub(crate) fn is_slot(text: &str) -> bool {
    matches!(text.len(), 1..=63)
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slots_of_several_resources_come_together() {
        let slots =
            slots_of(["PATH=/bin", "GANTRY_SLOTS=old", "GANTRY_SLOTS_1=mig-0", "GANTRY_SLOTS=slot-3,slot-0"]);
        assert_eq!(slots.unwrap(), ["slot-3", "slot-0", "mig-0"]);
        for without in
            [&["GANTRY_SLOTS="][..], &["GANTRY_SLOTSX=slot-0"], &["GANTRY_SLOTS_=slot-0"], &["GANTRY_SLOTS"]]
        {
            assert_eq!(slots_of(without.iter().copied()).unwrap(), [""; 0], "{without:?}");
        }
    }

    #[test]
    fn refusals() {
        let long = "s".repeat(64);
        let many = (0..=MAX_SLOTS).map(|number| format!("slot-{number}")).collect::<Vec<_>>().join(",");
        let rule = "a slot has 1 to 63 letters, digits, '-', '_', '.' and ':'";
        for (value, text) in [
            ("slot-0,", format!("GANTRY_SLOTS: \"\" is no slot: {rule}")),
            ("a b", format!("GANTRY_SLOTS: \"a b\" is no slot: {rule}")),
            ("../x", format!("GANTRY_SLOTS: \"../x\" is no slot: {rule}")),
            ("a\nb", format!("GANTRY_SLOTS: \"a\\nb\" is no slot: {rule}")),
            (&long, format!("GANTRY_SLOTS: \"{long}\" is no slot: {rule}")),
            ("slot-0,slot-0", "GANTRY_SLOTS: slot-0 stands there twice: a slot is granted once".to_owned()),
            (&many, "GANTRY_SLOTS: more than 1024 slots".to_owned()),
        ] {
            assert_eq!(decode_slots(SLOTS_VARIABLE, value).unwrap_err().to_string(), text);
        }
        let twice = slots_of(["GANTRY_SLOTS=a", "GANTRY_SLOTS_1=a"]).unwrap_err();
        assert_eq!(twice.to_string(), "GANTRY_SLOTS_1: a stands there twice: a slot is granted once");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(slots in proptest::collection::btree_set("[a-z0-9:._-]{1,63}", 0..20)) {
            let slots: Vec<String> = slots.into_iter().collect();
            prop_assert_eq!(decode_slots(SLOTS_VARIABLE, &encode_slots(&slots)).unwrap(), slots);
        }
    }
}
