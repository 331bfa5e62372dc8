//! What differs from Kubernetes on purpose, and why.

use std::fmt::Write as _;

/// One difference.
pub(crate) struct Difference {
    /// The steps whose names begin so.
    pub(crate) steps: &'static str,
    /// Where in the answer: the beginning of a JSON pointer, in which `*` is any one step; empty for the whole.
    pub(crate) path: &'static str,
    /// What is different.
    pub(crate) what: &'static str,
    /// Why it stays so.
    pub(crate) why: &'static str,
}

impl Difference {
    pub(crate) fn covers(&self, step: &str, path: &str) -> bool {
        let mut steps = path.split('/').skip(1);
        step.starts_with(self.steps)
            && self
                .path
                .split('/')
                .skip(1)
                .all(|wanted| steps.next().is_some_and(|step| wanted == "*" || wanted == step))
    }
}

/// Why there may be no difference today.
pub(crate) const ANY_ORDER: &str = "Kubernetes' order is that of a Go map, and changes";

pub(crate) const HEADING: &str = "## What differs from a real API server";

pub(crate) const DIFFERENCES: &[Difference] = &[
    Difference {
        steps: "setup: definition",
        path: "/body",
        what: "A definition is answered with its names accepted and its finalizer",
        why: "It takes effect with the write that makes it: whoever reads `Established` can use the resource",
    },
    Difference {
        steps: "",
        path: "/body/items/*/apiVersion",
        what: "Items of lists have `apiVersion`",
        why: "An item can be used as it is; clients fill it in or expect it",
    },
    Difference { steps: "", path: "/body/items/*/kind", what: "Items of lists have `kind`", why: "As above" },
    Difference {
        steps: "update of another uid",
        path: "/body/message",
        what: "No words of etcd's storage",
        why: "There is no etcd",
    },
    Difference {
        steps: "update of another namespace",
        path: "/body/message",
        what: "The two namespaces are named behind Kubernetes' words",
        why: "An error names the value",
    },
    Difference {
        steps: "update of another kind",
        path: "/body/message",
        what: "The kind in the data and the expected one are named",
        why: "Kubernetes' words are of its internal types",
    },
    Difference {
        steps: "change a Pod's containers",
        path: "/body",
        what: "No difference of two dumps of Go structures",
        why: "There are none",
    },
    Difference {
        steps: "merge, null for a required object",
        path: "/body",
        what: "A missing selector is one fault",
        why: "The second fault follows from the first",
    },
    Difference {
        steps: "deployment without a selector",
        path: "/body",
        what: "A missing selector is one fault",
        why: "The second fault follows from the first",
    },
    Difference {
        steps: "JSON patch, index out of bounds",
        path: "/body/message",
        what: "Tells the operation and the path",
        why: "An error names the field",
    },
    Difference {
        steps: "strategic, an item without its key",
        path: "",
        what: "400, with the path, instead of 500",
        why: "It is the client's mistake",
    },
    Difference {
        steps: "strategic, unknown directive",
        path: "",
        what: "400, with the path, instead of 500",
        why: "It is the client's mistake",
    },
    Difference {
        steps: "merge of a Thing, a rule",
        path: "/body",
        what: "`Invalid value: \"object\"` before the rule's message",
        why: "As Kubernetes up to 1.34; later versions leave it out",
    },
    Difference {
        steps: "apply with a control character",
        path: "/body",
        what: "The character is quoted as Rust does",
        why: "No tool reads it",
    },
    Difference {
        steps: "apply what is no YAML",
        path: "/body/message",
        what: "The parser's own words",
        why: "Another parser",
    },
    Difference {
        steps: "apply a Thing's wrong value",
        path: "/body/message",
        what: "Faults come in the order of the fields",
        why: ANY_ORDER,
    },
    Difference {
        steps: "thing",
        path: "/body",
        what: "Faults come in the order of the fields; a Scale's replicas are not checked a second time",
        why: "As above; the schema has told the fault",
    },
    Difference {
        steps: "malformed selector, key",
        path: "/body/message",
        what: "The faulty part is called `key`",
        why: "Kubernetes has `<nil>` there",
    },
    Difference {
        steps: "bad continue",
        path: "/body/message",
        what: "Only that the token is not valid",
        why: "Another token",
    },
    Difference { steps: "unknown group", path: "/body", what: "A Status", why: "A client can read it" },
    Difference {
        steps: "bad owner",
        path: "/body",
        what: "`Invalid value`",
        why: "As Kubernetes up to 1.34",
    },
    Difference {
        steps: "bad finalizer",
        path: "/body",
        what: "A bad name is one fault",
        why: "The second fault follows from the first",
    },
    Difference {
        steps: "no JSON",
        path: "/body/message",
        what: "The parser's own words",
        why: "Another parser",
    },
    Difference {
        steps: "no object",
        path: "/body/message",
        what: "No dump of a Go type",
        why: "There is none",
    },
    Difference {
        steps: "nothing",
        path: "/body/message",
        what: "The parser's own words",
        why: "Another parser",
    },
    Difference {
        steps: "unknown patch type",
        path: "/body/message",
        what: "Tells the accepted types",
        why: "An error names the fix",
    },
    Difference {
        steps: "wrong type of a quantity",
        path: "/body/message",
        what: "The field is named",
        why: "An error names the field",
    },
    Difference {
        steps: "bad port",
        path: "/body",
        what: "0 is out of range",
        why: "As Kubernetes up to 1.34",
    },
    Difference {
        steps: "unknown resource name",
        path: "/body",
        what: "A bad name is one fault",
        why: "The second fault follows from the first",
    },
    Difference {
        steps: "bad restart policy",
        path: "/body",
        what: "Supported values in the order of the alphabet",
        why: "As Kubernetes up to 1.34",
    },
    Difference {
        steps: "service with equal ports",
        path: "/body",
        what: "The fields of the duplicate are in the order of the alphabet",
        why: "So are those of all JSON here",
    },
    Difference {
        steps: "a method that is not there",
        path: "/body",
        what: "Names the method and the resource",
        why: "An error names the value",
    },
];

/// The section of the documentation.
pub(crate) fn section() -> String {
    let mut out = format!(
        "{HEADING}\n\n\
         Found by the test `this_server_answers_as_kubernetes_does`, which sends {} requests to this server and to a real\n\
         kube-apiserver and compares the answers. All else in those answers is the same. Do not edit: it is made from\n\
         `lab/apiserver/tests/oracle/differences.rs`.\n\n| requests | difference | reason |\n| --- | --- | --- |\n",
        crate::requests::steps().len()
    );
    for difference in DIFFERENCES {
        let steps = if difference.steps.is_empty() { "all" } else { difference.steps };
        let _ = writeln!(out, "| {steps} | {} | {} |", difference.what, difference.why);
    }
    out
}
