//! The annotations by which a pod tells how its simulated programs behave.
//!
//! | annotation | value | meaning |
//! | --- | --- | --- |
//! | `sim.gantry.dev/duration` | `90s`, `1h30m`, `forever` | how long programs run that are not simulated themselves |
//! | `sim.gantry.dev/exit-code` | 0 to 255 | what they exit with |
//! | `sim.gantry.dev/utilization` | 0 to 100 | load in percent on each GPU of each container, while it runs |
//! | `sim.gantry.dev/memory-used` | a quantity, `20Gi` | memory used on each of these GPUs |
//!
//! Without them, programs of a pod that is to end (with a `restartPolicy` other than `Always`, as each of a Job has) run for
//! [`TASK_DURATION`] and exit with 0, those of other pods run for ever, and GPUs are idle.

use std::collections::BTreeMap;
use std::time::Duration;

use gantry_units::Quantity;
use k8s_openapi::api::core::v1::Pod;

/// How long a program runs that is to end.
pub(crate) const TASK_DURATION: Duration = Duration::from_secs(30);

/// How long an init container's program runs.
pub(crate) const INIT_DURATION: Duration = Duration::from_millis(100);

const PREFIX: &str = "sim.gantry.dev/";

/// How a pod's programs behave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Simulation {
    /// `None` is for ever.
    pub(crate) duration: Option<Duration>,
    pub(crate) exit_code: i32,
    pub(crate) utilization_percent: u8,
    pub(crate) memory_used_mib: u64,
}

/// Why an annotation is not followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidAnnotation {
    /// No such annotation.
    #[error("metadata.annotations[{0}]: unknown; known are duration, exit-code, utilization, memory-used")]
    Unknown(String),
    /// The value breaks a rule.
    #[error("metadata.annotations[{name}]: Invalid value: {value:?}: {rule}; the default is used")]
    Value {
        /// The annotation.
        name: String,
        /// Its value.
        value: String,
        /// What it must be.
        rule: &'static str,
    },
}

impl Simulation {
    /// What a pod's annotations ask for, with what is wrong in them.
    pub(crate) fn of(pod: &Pod) -> (Self, Vec<InvalidAnnotation>) {
        let policy = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("Always");
        // A pod of a Volcano Job may restart always; then it is one that goes on.
        let ends = policy != "Always";
        let mut simulation = Self {
            duration: ends.then_some(TASK_DURATION),
            exit_code: 0,
            utilization_percent: 0,
            memory_used_mib: 0,
        };
        let empty = BTreeMap::new();
        let errors = pod
            .metadata
            .annotations
            .as_ref()
            .unwrap_or(&empty)
            .iter()
            .filter_map(|(name, value)| Some((name, name.strip_prefix(PREFIX)?, value)))
            .filter_map(|(name, key, value)| {
                simulation.set(key, value.trim()).err().map(|rule| match rule {
                    None => InvalidAnnotation::Unknown(name.clone()),
                    Some(rule) => InvalidAnnotation::Value { name: name.clone(), value: value.clone(), rule },
                })
            })
            .collect();
        (simulation, errors)
    }

    /// `Err(None)` for an unknown key, `Err(Some(rule))` for a bad value.
    fn set(&mut self, key: &str, value: &str) -> Result<(), Option<&'static str>> {
        let percent = || value.parse::<u8>().ok().filter(|percent| *percent <= 100);
        match key {
            "duration" if value == "forever" => self.duration = None,
            "duration" => {
                let rule = "must be a duration such as 90s or 1h30m, or forever";
                self.duration = Some(duration(value).ok_or(Some(rule))?);
            }
            "exit-code" => {
                self.exit_code =
                    value.parse::<u8>().map_err(|_| Some("must be a whole number from 0 to 255"))?.into();
            }
            "utilization" => {
                self.utilization_percent =
                    percent().ok_or(Some("must be a whole number of percent from 0 to 100"))?;
            }
            "memory-used" => {
                let rule = "must be a quantity of bytes that is not negative, such as 20Gi";
                let bytes = value.parse::<Quantity>().map_err(|_| Some(rule))?.value();
                self.memory_used_mib = u64::try_from(bytes).map_err(|_| Some(rule))?.div_ceil(1 << 20);
            }
            _ => return Err(None),
        }
        Ok(())
    }
}

/// A duration as Go writes it: whole numbers with the units h, m, s, ms, from large to small.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    let mut smallest = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let millis = match &rest[..unit] {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return None,
        };
        if millis >= smallest {
            return None;
        }
        smallest = millis;
        total = total.checked_add(Duration::from_millis(number.checked_mul(millis)?))?;
        rest = &rest[unit..];
    }
    // A hundred years are for ever; what is longer is a slip.
    (smallest != u64::MAX && total < Duration::from_hours(876_600)).then_some(total)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(annotations: &serde_json::Value, policy: &str, owner: Option<&str>) -> Pod {
        let owners: Vec<_> = owner
            .map(|kind| json!({"apiVersion": "batch/v1", "kind": kind, "name": "o", "uid": "u"}))
            .into_iter()
            .collect();
        serde_json::from_value(json!({
            "metadata": {"annotations": annotations, "ownerReferences": owners},
            "spec": {"containers": [], "restartPolicy": policy},
        }))
        .unwrap()
    }

    #[test]
    fn services_run_for_ever_and_tasks_end() {
        for (policy, owner, expected) in [
            ("Always", None, None),
            ("Always", Some("ReplicaSet"), None),
            ("Never", None, Some(TASK_DURATION)),
            ("OnFailure", Some("Job"), Some(TASK_DURATION)),
            ("Always", Some("Job"), None),
        ] {
            assert_eq!(
                Simulation::of(&pod(&json!({}), policy, owner)).0.duration,
                expected,
                "{policy} {owner:?}"
            );
        }
    }

    #[test]
    fn annotations_are_read_strictly() {
        let good = json!({
            "sim.gantry.dev/duration": "1h30m", "sim.gantry.dev/exit-code": "3",
            "sim.gantry.dev/utilization": "85", "sim.gantry.dev/memory-used": "20Gi",
        });
        let (simulation, errors) = Simulation::of(&pod(&good, "Always", None));
        assert_eq!(errors, []);
        assert_eq!(
            simulation,
            Simulation {
                duration: Some(Duration::from_mins(90)),
                exit_code: 3,
                utilization_percent: 85,
                memory_used_mib: 20 * 1024
            }
        );
        for (key, value) in [
            ("duration", "5"),
            ("duration", "-5s"),
            ("duration", "5s1m"),
            ("duration", ""),
            ("duration", "99999999999h"),
            ("exit-code", "256"),
            ("utilization", "101"),
            ("utilization", "80%"),
            ("memory-used", "-1Gi"),
            ("memory-used", "lots"),
        ] {
            let (simulation, errors) =
                Simulation::of(&pod(&json!({format!("sim.gantry.dev/{key}"): value}), "Always", None));
            assert_eq!(errors.len(), 1, "{key}={value}");
            assert!(errors[0].to_string().contains("Invalid value"), "{}", errors[0]);
            assert_eq!(simulation, Simulation::of(&pod(&json!({}), "Always", None)).0, "{key}={value}");
        }
        let (_, errors) = Simulation::of(&pod(&json!({"sim.gantry.dev/speed": "1"}), "Always", None));
        assert!(errors[0].to_string().contains("unknown"), "{}", errors[0]);
    }
}
