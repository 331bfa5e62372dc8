//! Which nodes a cluster has: from a flag or from a file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, bail};
use gantry_apimachinery::{validate_label_value, validate_qualified_name};
use gantry_gpu::Profile;
use k8s_openapi::api::core::v1::Taint;
use serde::Deserialize;

/// GPUs of a node unless the user says otherwise: what an SXM board carries.
const GPUS_PER_NODE: u32 = 8;
/// A cluster larger than this is a slip of the keyboard rather than a wish.
const MAX_NODES: u32 = 20_000;
/// The engine's device table is exhaustive up to this many.
const MAX_GPUS: u32 = 16;

/// Nodes that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Group {
    /// The kind of GPU, such as `a100-80`.
    pub(crate) profile: String,
    /// How many nodes.
    #[serde(default = "one")]
    pub(crate) count: u32,
    /// GPUs of each node.
    #[serde(default = "gpus_per_node")]
    pub(crate) gpus: u32,
    /// Labels that the nodes carry besides those that describe their GPUs.
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    /// Taints that keep pods away which do not tolerate them.
    #[serde(default)]
    pub(crate) taints: Vec<NodeTaint>,
}

/// A taint of the nodes of a group.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct NodeTaint {
    key: String,
    #[serde(default)]
    value: Option<String>,
    effect: Effect,
}

/// What a taint does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

impl NodeTaint {
    /// The taint as Kubernetes writes it.
    pub(crate) fn to_api(&self) -> Taint {
        Taint {
            key: self.key.clone(),
            value: self.value.clone(),
            effect: format!("{:?}", self.effect),
            time_added: None,
        }
    }
}

fn one() -> u32 {
    1
}

fn gpus_per_node() -> u32 {
    GPUS_PER_NODE
}

/// The value of `--nodes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodesFlag(pub(crate) Vec<Group>);

impl fmt::Display for NodesFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, group) in self.0.iter().enumerate() {
            let comma = if position == 0 { "" } else { "," };
            write!(f, "{comma}{}={}:{}", group.profile, group.count, group.gpus)?;
        }
        Ok(())
    }
}

impl FromStr for NodesFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut groups = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (profile, rest) = part.split_once('=').unwrap_or((part, "1"));
            let (count, gpus) =
                rest.split_once(':').map_or((rest, None), |(count, gpus)| (count, Some(gpus)));
            let number = |what: &str, text: &str| {
                text.parse::<u32>().map_err(|_| {
                    format!("{part:?}: {what} {text:?} is no whole number; write PROFILE=COUNT[:GPUS], as in a100-80=2:4")
                })
            };
            groups.push(Group {
                profile: profile.to_owned(),
                count: number("count", count)?,
                gpus: gpus.map_or(Ok(GPUS_PER_NODE), |gpus| number("number of GPUs", gpus))?,
                labels: BTreeMap::new(),
                taints: Vec::new(),
            });
        }
        check(&groups).map_err(|error| error.to_string())?;
        Ok(Self(groups))
    }
}

/// Reads the nodes from a YAML file.
pub(crate) fn from_file(path: &Path) -> anyhow::Result<Vec<Group>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    from_text(&text).with_context(|| format!("parse {}", path.display()))
}

/// The nodes in the text of a YAML file: `nodes: [{profile, count, gpus, labels, taints}]`.
pub(crate) fn from_text(text: &str) -> anyhow::Result<Vec<Group>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        nodes: Vec<Group>,
    }
    let file: File = serde_saphyr::from_str(text)?;
    check(&file.nodes)?;
    Ok(file.nodes)
}

/// A cluster worth trying things on: training cards of two generations, a consumer card and an inference card.
pub(crate) fn default_nodes() -> Vec<Group> {
    [("a100-80", 2), ("h100", 1), ("rtx3090", 1), ("t4", 1)]
        .into_iter()
        .map(|(profile, count)| Group {
            profile: profile.to_owned(),
            count,
            gpus: if profile == "t4" { 4 } else { GPUS_PER_NODE },
            labels: BTreeMap::new(),
            taints: Vec::new(),
        })
        .collect()
}

fn check(groups: &[Group]) -> anyhow::Result<()> {
    if groups.is_empty() {
        bail!("no nodes: write PROFILE=COUNT[:GPUS], as in a100-80=2");
    }
    for group in groups {
        Profile::named(&group.profile)?;
        if group.gpus > MAX_GPUS {
            bail!("{}: {} GPUs a node: use 0 to {MAX_GPUS}", group.profile, group.gpus);
        }
        // What the API server would refuse in the Node, at which a kubelet would try again for ever.
        let keys = group.labels.keys().chain(group.taints.iter().map(|taint| &taint.key));
        for key in keys {
            if let Some(rule) = validate_qualified_name(key).first() {
                bail!("{}: label or taint {key:?}: {rule}", group.profile);
            }
        }
        let values =
            group.labels.values().chain(group.taints.iter().filter_map(|taint| taint.value.as_ref()));
        for value in values {
            if let Some(rule) = validate_label_value(value).first() {
                bail!("{}: value {value:?} of a label or taint: {rule}", group.profile);
            }
        }
    }
    let total = groups.iter().fold(0_u32, |sum, group| sum.saturating_add(group.count));
    if total == 0 || total > MAX_NODES {
        bail!("{total} nodes: use 1 to {MAX_NODES}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_has_eight_gpus_a_node_unless_told() {
        let NodesFlag(groups) = "a100-80=2,rtx3090=4:2, t4".parse().expect("valid");
        let read: Vec<_> =
            groups.iter().map(|group| (group.profile.as_str(), group.count, group.gpus)).collect();
        assert_eq!(read, [("a100-80", 2, 8), ("rtx3090", 4, 2), ("t4", 1, 8)]);
    }

    #[test]
    fn a_bad_flag_is_told_what_is_wrong() {
        for (text, expected) in [
            ("", "no nodes"),
            ("a100-80=x", "is no whole number"),
            ("a100-80=2:-1", "is no whole number"),
            ("gtx9999=1", "is not known: use one of"),
            ("a100-80=1:17", "use 0 to 16"),
            ("a100-80=4294967295,t4=4294967295", "use 1 to 20000"),
            ("a100-80=0", "0 nodes"),
        ] {
            let error = text.parse::<NodesFlag>().expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn the_default_has_four_kinds_of_node() {
        let kinds: std::collections::BTreeSet<_> =
            default_nodes().into_iter().map(|group| group.profile).collect();
        assert_eq!(kinds.len(), 4);
    }

    #[test]
    fn labels_and_taints_that_no_node_can_have_are_refused() {
        for (extra, expected) in [
            ("labels: {a b: c}", "label or taint \"a b\""),
            ("labels: {a: x y}", "value \"x y\""),
            ("taints: [{key: a b, effect: NoSchedule}]", "label or taint \"a b\""),
            ("taints: [{key: a, value: x y, effect: NoSchedule}]", "value \"x y\""),
        ] {
            let error =
                from_text(&format!("nodes: [{{profile: t4, {extra}}}]")).expect_err(extra).to_string();
            assert!(error.starts_with("t4: ") && error.contains(expected), "{extra}: {error}");
        }
    }
}
