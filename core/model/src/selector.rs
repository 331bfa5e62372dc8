//! Which nodes a pod may use: node selector, node affinity, taints and tolerations.
//!
//! Semantics: <https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/> and
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/>.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// Labels by key.
pub type Labels = BTreeMap<Arc<str>, Arc<str>>;

/// What a requirement asks of the value of one key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Test {
    /// The key is there with one of these values.
    In(BTreeSet<Arc<str>>),
    /// The key is absent, or has none of these values.
    NotIn(BTreeSet<Arc<str>>),
    /// The key is there.
    Exists,
    /// The key is absent.
    DoesNotExist,
    /// The key is there with an integer above this one.
    Gt(i64),
    /// The key is there with an integer below this one.
    Lt(i64),
}

/// One requirement of a node selector term.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirement {
    /// The label (or field) that is looked at.
    pub key: Arc<str>,
    /// What is asked of it.
    pub test: Test,
}

impl Requirement {
    /// Whether `value`, the key's value where it is there, fulfils the requirement.
    pub fn accepts(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.test {
            Test::In(values) => value.is_some_and(|value| self.names(values, value)),
            Test::NotIn(values) => value.is_none_or(|value| !self.names(values, value)),
            Test::Exists => value.is_some(),
            Test::DoesNotExist => value.is_none(),
            Test::Gt(bound) => number().is_some_and(|number| number > *bound),
            Test::Lt(bound) => number().is_some_and(|number| number < *bound),
        }
    }

    fn names(&self, values: &BTreeSet<Arc<str>>, value: &str) -> bool {
        values.contains(value) || values.iter().any(|named| same_value(&self.key, named, value))
    }
}

/// The label with a GPU's product name, as NVIDIA's GPU Feature Discovery writes it.
const PRODUCT_LABEL: &str = "nvidia.com/gpu.product";

/// Whether a label with `actual` as its value has what somebody wrote as `wanted`. That is equality, but for product names of
/// GPUs: old drivers print `A100-SXM4-80GB`, newer ones `NVIDIA A100-SXM4-80GB`, and a manifest written against one names the
/// same card on the other.
fn same_value(key: &str, wanted: &str, actual: &str) -> bool {
    let product = |value: &str| value.strip_prefix("NVIDIA-").unwrap_or(value).to_owned();
    wanted == actual || (key == PRODUCT_LABEL && product(wanted) == product(actual))
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |values: &BTreeSet<Arc<str>>| values.iter().map(|v| &**v).collect::<Vec<_>>().join(", ");
        let key = &self.key;
        match &self.test {
            Test::In(values) if values.len() == 1 => write!(f, "{key}={}", list(values)),
            Test::In(values) => write!(f, "{key} in ({})", list(values)),
            Test::NotIn(values) => write!(f, "{key} notin ({})", list(values)),
            Test::Exists => write!(f, "{key}"),
            Test::DoesNotExist => write!(f, "!{key}"),
            Test::Gt(bound) => write!(f, "{key} > {bound}"),
            Test::Lt(bound) => write!(f, "{key} < {bound}"),
        }
    }
}

/// Requirements that must hold together. A term without any matches no node, as in Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeSelectorTerm {
    /// Requirements on labels (`matchExpressions`).
    pub labels: Vec<Requirement>,
    /// Requirements on the node's name (`matchFields`, whose only key is `metadata.name`).
    pub name: Vec<Requirement>,
}

impl NodeSelectorTerm {
    /// Whether the node of this name with these labels fulfils every requirement.
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        !self.is_empty() && self.unmet(name, labels).next().is_none()
    }

    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.name.is_empty()
    }

    /// The requirements that the node does not fulfil.
    fn unmet(&self, name: &str, labels: &Labels) -> impl Iterator<Item = &Requirement> {
        let unmet_labels =
            self.labels.iter().filter(|r| !r.accepts(labels.get(&r.key).map(|value| &**value)));
        unmet_labels.chain(self.name.iter().filter(move |r| !r.accepts(Some(name))))
    }
}

/// What of a pod's constraints a node does not fulfil. Without all of it, the node would do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unmet {
    /// What is required and not there, each once.
    pub requirements: Vec<Requirement>,
    /// Whether the required affinity has no requirement in any term, and therefore matches no node at all.
    pub has_only_empty_terms: bool,
}

/// Where a pod wants to run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeConstraints {
    /// Labels that must be there with these values (`nodeSelector`).
    pub node_selector: Labels,
    /// Required node affinity: at least one of these terms must match. `None` where the pod asks for none.
    pub required: Option<Vec<NodeSelectorTerm>>,
    /// Preferred node affinity: weights (1 to 100) of terms that match are added up.
    pub preferred: Vec<(u8, NodeSelectorTerm)>,
}

impl NodeConstraints {
    /// Whether the node fulfils node selector and required affinity.
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        self.node_selector.iter().all(|(key, value)| has(labels, key, value))
            && self.required.as_ref().is_none_or(|terms| terms.iter().any(|term| term.matches(name, labels)))
    }

    /// The weight of all preferred terms that the node fulfils.
    pub fn preference(&self, name: &str, labels: &Labels) -> u32 {
        let matching = self.preferred.iter().filter(|(_, term)| term.matches(name, labels));
        matching.map(|(weight, _)| u32::from(*weight)).sum()
    }

    /// Everything that the node lacks: labels of the selector, and requirements of the affinity's nearest term.
    pub fn unmet(&self, name: &str, labels: &Labels) -> Unmet {
        let selector = self.node_selector.iter().filter(|(key, value)| !has(labels, key, value));
        let required = |(key, value): (&Arc<str>, &Arc<str>)| Requirement {
            key: key.clone(),
            test: Test::In(BTreeSet::from([value.clone()])),
        };
        let mut unmet = Unmet { requirements: selector.map(required).collect(), has_only_empty_terms: false };
        let terms = self.required.as_ref().filter(|terms| !terms.iter().any(|t| t.matches(name, labels)));
        for requirement in terms.into_iter().flat_map(|terms| nearest_term(terms, name, labels)) {
            if !unmet.requirements.contains(requirement) {
                unmet.requirements.push(requirement.clone());
            }
        }
        unmet.has_only_empty_terms = terms.is_some_and(|terms| terms.iter().all(NodeSelectorTerm::is_empty));
        unmet
    }
}

/// The fewest requirements without which one of the terms would match: a term that has lost all of its requirements matches
/// nothing, so that the others must go with it.
fn nearest_term<'a>(terms: &'a [NodeSelectorTerm], name: &str, labels: &Labels) -> Vec<&'a Requirement> {
    let unmet = |term: &'a NodeSelectorTerm| term.unmet(name, labels).collect::<Vec<_>>();
    let keeps_some = terms
        .iter()
        .map(|term| (unmet(term), term.labels.len() + term.name.len()))
        .filter(|(unmet, all)| unmet.len() < *all);
    let nearest = keeps_some.map(|(unmet, _)| unmet).min_by_key(Vec::len);
    nearest.unwrap_or_else(|| terms.iter().flat_map(unmet).collect())
}

fn has(labels: &Labels, key: &str, wanted: &str) -> bool {
    labels.get(key).is_some_and(|actual| same_value(key, wanted, actual))
}

/// What a taint does to pods that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaintEffect {
    /// They are not placed on the node.
    NoSchedule,
    /// They are placed elsewhere where possible.
    PreferNoSchedule,
    /// They are not placed on the node, and evicted from it.
    NoExecute,
}

impl TaintEffect {
    /// Kubernetes' name of the effect.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }

    /// The effect of this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute].into_iter().find(|e| e.as_str() == name)
    }
}

/// A mark on a node that keeps pods away.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Taint {
    /// The key, such as `nvidia.com/gpu`.
    pub key: Arc<str>,
    /// The value, often empty.
    pub value: Arc<str>,
    /// What the taint does.
    pub effect: TaintEffect,
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, effect } = self;
        let equals = if value.is_empty() { "" } else { "=" };
        write!(f, "{key}{equals}{value}:{}", effect.as_str())
    }
}

/// Which taints a pod accepts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Toleration {
    /// The key; `None` accepts every key.
    pub key: Option<Arc<str>>,
    /// The value that the taint must have; `None` (operator `Exists`) accepts every value.
    pub value: Option<Arc<str>>,
    /// The effect; `None` accepts every effect.
    pub effect: Option<TaintEffect>,
}

impl Toleration {
    /// Whether the pod accepts this taint.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.key.as_ref().is_none_or(|key| *key == taint.key)
            && self.value.as_ref().is_none_or(|value| *value == taint.value)
            && self.effect.is_none_or(|effect| effect == taint.effect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    fn values(list: &[&str]) -> BTreeSet<Arc<str>> {
        list.iter().map(|v| (*v).into()).collect()
    }

    #[test]
    fn a_product_is_the_same_with_and_without_its_vendor() {
        let product: Arc<str> = "nvidia.com/gpu.product".into();
        let accepts = |test: Test, value| Requirement { key: product.clone(), test }.accepts(Some(value));
        assert!(accepts(Test::In(values(&["A100-SXM4-80GB"])), "NVIDIA-A100-SXM4-80GB"));
        assert!(accepts(Test::In(values(&["NVIDIA-A100-SXM4-80GB"])), "A100-SXM4-80GB"));
        assert!(!accepts(Test::NotIn(values(&["A100-SXM4-80GB"])), "NVIDIA-A100-SXM4-80GB"));
        assert!(!accepts(Test::In(values(&["A100-SXM4-40GB"])), "NVIDIA-A100-SXM4-80GB"));
        let constraints = NodeConstraints {
            node_selector: labels(&[("nvidia.com/gpu.product", "A100-SXM4-80GB")]),
            ..NodeConstraints::default()
        };
        let node = labels(&[("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB")]);
        assert!(constraints.matches("n", &node) && constraints.unmet("n", &node) == Unmet::default());
        let other = Requirement { key: "a".into(), test: Test::In(values(&["x"])) };
        assert!(!other.accepts(Some("NVIDIA-x")), "other labels are compared exactly");
    }

    #[test]
    fn operators_follow_kubernetes() {
        let accepts = |test: Test, value| Requirement { key: "k".into(), test }.accepts(value);
        for (test, value, expected) in [
            (Test::In(values(&["a", "b"])), Some("a"), true),
            (Test::In(values(&["a"])), None, false),
            (Test::NotIn(values(&["a"])), Some("a"), false),
            (Test::NotIn(values(&["a"])), None, true),
            (Test::Exists, Some(""), true),
            (Test::DoesNotExist, Some(""), false),
            (Test::Gt(7), Some("8"), true),
            (Test::Gt(7), Some("7"), false),
            (Test::Gt(7), Some("eight"), false),
            (Test::Lt(7), None, false),
        ] {
            assert_eq!(accepts(test.clone(), value), expected, "{test:?} {value:?}");
        }
    }

    #[test]
    fn terms_are_alternatives_and_an_empty_term_matches_nothing() {
        let term = |key: &str| NodeSelectorTerm {
            labels: vec![Requirement { key: key.into(), test: Test::Exists }],
            name: vec![],
        };
        let constraints = |required| NodeConstraints { required: Some(required), ..Default::default() };
        let node = labels(&[("gpu", "t4")]);
        assert!(constraints(vec![term("absent"), term("gpu")]).matches("n", &node));
        assert!(!constraints(vec![term("absent")]).matches("n", &node));
        assert!(!constraints(vec![NodeSelectorTerm::default()]).matches("n", &node));
        assert!(!constraints(vec![]).matches("n", &node));
    }

    #[test]
    fn what_is_unmet_is_named() {
        let constraints = NodeConstraints {
            node_selector: labels(&[("gpu-topology", "nvlink4")]),
            ..NodeConstraints::default()
        };
        let unmet = |constraints: &NodeConstraints, pairs| {
            let unmet = constraints.unmet("n", &labels(pairs));
            (
                unmet.requirements.iter().map(ToString::to_string).collect::<Vec<_>>(),
                unmet.has_only_empty_terms,
            )
        };
        assert_eq!(unmet(&constraints, &[]), (vec!["gpu-topology=nvlink4".to_owned()], false));
        assert_eq!(unmet(&constraints, &[("gpu-topology", "nvlink4")]), (vec![], false));
        let exists = |key: &str| Requirement { key: key.into(), test: Test::Exists };
        let term = |keys: &[&str]| NodeSelectorTerm {
            labels: keys.iter().map(|key| exists(key)).collect(),
            name: vec![],
        };
        let with = |terms: &[&[&str]]| NodeConstraints {
            node_selector: labels(&[("s", "1"), ("t", "2")]),
            required: Some(terms.iter().map(|keys| term(keys)).collect()),
            preferred: Vec::new(),
        };
        for (terms, expected, is_empty) in [
            // All labels of the selector, and all of the term that comes nearest.
            (&[&["a", "b", "z"][..], &["c", "z"]][..], &["s=1", "t=2", "c"][..], false),
            // A term of which nothing is left matches nothing: the others must go as well.
            (&[&["a"], &["b", "c"]], &["s=1", "t=2", "a", "b", "c"], false),
            (&[&["a"]], &["s=1", "t=2", "a"], false),
            (&[&[]], &["s=1", "t=2"], true),
            (&[&["z"]], &["s=1", "t=2"], false),
        ] {
            let (names, has_only_empty_terms) = unmet(&with(terms), &[("z", "")]);
            assert_eq!(
                (names.as_slice(), has_only_empty_terms),
                (&expected.iter().map(|e| (*e).to_owned()).collect::<Vec<_>>()[..], is_empty),
                "{terms:?}"
            );
        }
    }

    #[test]
    fn a_toleration_without_key_accepts_every_taint() {
        let taint = Taint { key: "nvidia.com/gpu".into(), value: "".into(), effect: TaintEffect::NoSchedule };
        let all = Toleration { key: None, value: None, effect: None };
        let equal = Toleration { value: Some("present".into()), ..all.clone() };
        let execute = Toleration { effect: Some(TaintEffect::NoExecute), ..all.clone() };
        assert_eq!([all, equal, execute].map(|t| t.tolerates(&taint)), [true, false, false]);
        assert_eq!(taint.to_string(), "nvidia.com/gpu:NoSchedule");
    }
}
