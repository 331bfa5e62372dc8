//! As much of Helm's template language as the chart uses, so that `gantry manifests` and `helm template` render the same files.
//!
//! ```text
//!   text ──parse──▶ Node tree ──render(scope: dot, variables, named templates)──▶ text
//! ```
//!
//! What is not known here is an error with its file and line: the chart stays within what both understand, and a test renders it with both.
//!
//! Language: [text/template](https://pkg.go.dev/text/template), functions: [Sprig](https://masterminds.github.io/sprig/) and Helm.

mod functions;
mod parse;
mod render;

pub(crate) use render::Templates;

/// Why a template cannot be read or rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Error {
    /// The file, as in `templates/agent.yaml`.
    pub(crate) file: String,
    /// The line, from 1.
    pub(crate) line: usize,
    /// What is wrong.
    pub(crate) message: String,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn render(text: &str, root: &Value) -> Result<String, String> {
        let mut templates = Templates::default();
        templates
            .add("t.yaml", text)
            .and_then(|()| templates.render("t.yaml", root))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn what_the_chart_uses_is_rendered_as_helm_does() {
        let root = json!({
            "a": { "b": "x", "n": 3, "yes": true, "list": ["p", "q"], "map": { "k": { "z": 1, "w": [] } }, "none": null, "text": "l1\nl2\n" },
        });
        for (text, expected) in [
            ("{{ .a.b }}-{{ .a.n }}-{{ .a.yes }}-{{ .a.missing }}-{{ $.a.b }}", "x-3-true--x"),
            ("a {{- .a.b -}} b", "axb"),
            ("a\n  {{- /* said to nobody }} */}}\nb", "a\nb"),
            ("{{ if .a.none }}1{{ else if .a.yes }}2{{ else }}3{{ end }}", "2"),
            (
                "{{ if and .a.yes .a.b }}1{{ end }}{{ if or .a.none \"\" }}2{{ end }}{{ if not .a.none }}3{{ end }}",
                "13",
            ),
            ("{{ if or .a.none (eq .a.b \"x\") }}1{{ end }}{{ if ne .a.n 3 }}2{{ end }}", "1"),
            ("{{ with .a.map }}{{ .k.z }}{{ end }}{{ with .a.none }}no{{ end }}", "1"),
            ("{{ range .a.list }}[{{ . }}{{ $.a.n }}]{{ end }}", "[p3][q3]"),
            ("{{ $v := .a.b }}{{ if true }}{{ $v = \"w\" }}{{ $v := \"inner\" }}{{ end }}{{ $v }}", "w"),
            ("{{ .a.none | default \"d\" }}{{ .a.b | default \"d\" | quote }}", "d\"x\""),
            ("{{ printf \"%s-%s\" .a.b \"}}\" | trunc 3 | trimSuffix \"}\" }}", "x-"),
            ("{{ join \",\" .a.list }} {{ first .a.list }} {{ contains \"l\" \"helm\" }}", "p,q p true"),
            ("{{ kindIs \"invalid\" .a.none }} {{ kindIs \"map\" .a.map }}", "true true"),
            ("m:{{ toYaml .a.map | nindent 2 }}", "m:\n  k:\n    w: []\n    z: 1"),
            ("m: {{ \"a\\nb\" | indent 2 }}", "m:   a\n  b"),
            ("{{ \"\" | sha256sum }}", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            ("{{ define \"x\" }}<{{ .v }}{{ $.v }}>{{ end }}{{ include \"x\" (dict \"v\" .a.n) }}", "<33>"),
        ] {
            assert_eq!(render(text, &root).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_place() {
        for (text, expected) in [
            ("a\n{{ x", "t.yaml:2: an action is not closed with }}"),
            ("{{ if .a }}", "t.yaml:1: there is no {{ end }} for this"),
            ("{{ end }}", "t.yaml:1: this ends nothing"),
            ("{{ with .a }}{{ else }}{{ end }}", "t.yaml:1: {{ else }} is known for {{ if }} alone"),
            ("{{ \"a }}", "t.yaml:1: an action is not closed with }}"),
            ("{{ (.a }}", "t.yaml:1: a ( is not closed"),
            ("{{ .a) }}", "t.yaml:1: there is a ) too many"),
            ("{{ .a | }}", "t.yaml:1: a value is missing"),
            ("{{ .a & .b }}", "t.yaml:1: character '&' is not known here"),
            ("{{ .a.b.c }}", "t.yaml:1: there is nothing that could have a field .c"),
            ("{{ .s.b }}", "t.yaml:1: \"text\" has no field .b"),
            ("\n{{ $x }}", "t.yaml:2: $x is not known"),
            ("{{ $x = 1 }}", "t.yaml:1: $x is not known: make it with :="),
            ("{{ lookup \"v1\" \"Pod\" }}", "t.yaml:1: function lookup with 2 arguments is not known here"),
            ("{{ .a 1 }}", "t.yaml:1: a value takes no arguments"),
            ("{{ fail \"no\" }}", "t.yaml:1: no"),
            ("{{ include \"y\" . }}", "t.yaml:1: no template is named \"y\""),
            (
                "{{ define \"x\" }}{{ include \"x\" . }}{{ end }}{{ include \"x\" . }}",
                "t.yaml:1: template \"x\" includes itself without end",
            ),
            (
                "{{ printf \"%d\" 1 }}",
                "t.yaml:1: printf \"%d\": only %s is known here, and one value for each",
            ),
            ("{{ range .s }}{{ end }}", "t.yaml:1: \"text\" is no list"),
        ] {
            assert_eq!(render(text, &json!({ "a": {}, "s": "text" })), Err(expected.to_owned()), "{text}");
        }
    }
}
