//! Names, label keys and label values: the rules of `k8s.io/apimachinery/pkg/util/validation`.
//!
//! Each function gives the broken rules, in the words of Kubernetes; an empty list means that the text is valid.

use serde_json::Value;

use crate::{FieldError, FieldPath};

const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;
/// Keys and values of all annotations of an object together, in bytes.
const ANNOTATIONS_MAX: usize = 256 * 1024;

const QUALIFIED_NAME: Rule = Rule {
    text: "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
    examples: &["MyName", "my.name", "123-abc"],
    pattern: "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]",
};

/// A rule that texts are held to, with what its refusal tells.
struct Rule {
    text: &'static str,
    examples: &'static [&'static str],
    pattern: &'static str,
}

impl Rule {
    fn refusal(&self) -> String {
        let examples: Vec<String> = self.examples.iter().map(|example| format!("'{example}', ")).collect();
        format!(
            "{} (e.g. {}regex used for validation is '{}')",
            self.text,
            examples.join(" or "),
            self.pattern
        )
    }
}

/// A DNS label in lower case, 63 bytes at most: the name of a Namespace, of a container.
pub fn validate_dns1123_label(text: &str) -> Vec<String> {
    const RULE: Rule = Rule {
        text: "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
        examples: &["my-name", "123-abc"],
        pattern: "[a-z0-9]([-a-z0-9]*[a-z0-9])?",
    };
    check(text, LABEL_MAX, &RULE, is_dns_label(text))
}

/// DNS labels joined by dots, 253 bytes at most: the name of most objects.
pub fn validate_dns1123_subdomain(text: &str) -> Vec<String> {
    const RULE: Rule = Rule {
        text: "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
        examples: &["example.com"],
        pattern: r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
    };
    check(text, SUBDOMAIN_MAX, &RULE, text.split('.').all(is_dns_label))
}

/// A DNS label that starts with a letter, 63 bytes at most: the name of a Service.
pub fn validate_dns1035_label(text: &str) -> Vec<String> {
    const RULE: Rule = Rule {
        text: "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character",
        examples: &["my-name", "abc-123"],
        pattern: "[a-z]([-a-z0-9]*[a-z0-9])?",
    };
    check(text, LABEL_MAX, &RULE, is_dns_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase()))
}

/// A name with an optional DNS subdomain before a slash: the key of a label, an annotation, a resource.
pub fn validate_qualified_name(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let name = match text.split('/').collect::<Vec<_>>()[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                faults.push("prefix part must be non-empty".to_owned());
            } else {
                faults.extend(
                    validate_dns1123_subdomain(prefix).iter().map(|fault| format!("prefix part {fault}")),
                );
            }
            name
        }
        _ => {
            return vec![format!(
                "a qualified name {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                QUALIFIED_NAME.refusal()
            )];
        }
    };
    if name.is_empty() {
        faults.push("name part must be non-empty".to_owned());
    }
    let checked = check(name, LABEL_MAX, &QUALIFIED_NAME, is_name_part(name));
    faults.extend(checked.iter().map(|fault| format!("name part {fault}")));
    faults
}

/// The value of a label: empty, or 63 bytes at most.
pub fn validate_label_value(text: &str) -> Vec<String> {
    const RULE: Rule = Rule {
        text: "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
        examples: &["MyValue", "my_value", "12345"],
        pattern: "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
    };
    check(text, LABEL_MAX, &RULE, text.is_empty() || is_name_part(text))
}

/// Checks a map of labels; `path` is the field that holds it, such as `metadata.labels`.
pub fn validate_labels(labels: &Value, path: &FieldPath) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, value) in entries(labels, path, &mut errors) {
        let faults = validate_qualified_name(key);
        errors.extend(faults.into_iter().map(|fault| FieldError::invalid(path, key, fault)));
        let faults = validate_label_value(value);
        errors.extend(faults.into_iter().map(|fault| FieldError::invalid(path, value, fault)));
    }
    errors
}

/// Checks a map of annotations; `path` is the field that holds it, such as `metadata.annotations`.
pub fn validate_annotations(annotations: &Value, path: &FieldPath) -> Vec<FieldError> {
    let (mut errors, mut size) = (Vec::new(), 0);
    for (key, value) in entries(annotations, path, &mut errors) {
        let faults = validate_qualified_name(&key.to_lowercase());
        errors.extend(faults.into_iter().map(|fault| FieldError::invalid(path, key, fault)));
        size += key.len() + value.len();
    }
    if size > ANNOTATIONS_MAX {
        errors.push(FieldError::too_long(path, ANNOTATIONS_MAX));
    }
    errors
}

/// The entries of a map of strings; what is no string becomes an error.
fn entries<'a>(map: &'a Value, path: &FieldPath, errors: &mut Vec<FieldError>) -> Vec<(&'a str, &'a str)> {
    match map {
        Value::Null => Vec::new(),
        Value::Object(map) => map
            .iter()
            .filter_map(|(key, value)| match value {
                Value::String(value) => Some((key.as_str(), value.as_str())),
                other => {
                    errors.push(FieldError::type_invalid(&path.key(key), other.clone(), "must be a string"));
                    None
                }
            })
            .collect(),
        other => {
            errors.push(FieldError::type_invalid(path, other.clone(), "must be a map of strings"));
            Vec::new()
        }
    }
}

fn check(text: &str, max: usize, rule: &Rule, matches: bool) -> Vec<String> {
    let too_long = (text.len() > max).then(|| format!("must be no more than {max} bytes"));
    let malformed = (!matches).then(|| rule.refusal());
    too_long.into_iter().chain(malformed).collect()
}

fn is_dns_label(text: &str) -> bool {
    is_bounded_by_alphanumerics(text)
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

fn is_name_part(text: &str) -> bool {
    is_bounded_by_alphanumerics(text)
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

fn is_bounded_by_alphanumerics(text: &str) -> bool {
    let ends = (text.as_bytes().first(), text.as_bytes().last());
    matches!(ends, (Some(first), Some(last)) if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_follow_the_rules_of_kubernetes() {
        type Check = fn(&str) -> Vec<String>;
        let long = "a".repeat(64);
        let cases: [(Check, &[&str], &[&str]); 5] = [
            (validate_dns1123_label, &["a", "a-b", "1a"], &["", "A", "a.b", "-a", "a-", "a_b", &long, "é"]),
            (validate_dns1123_subdomain, &["a", "a.b-c.1", &long], &["", "a..b", ".a", "a.", "A.b", "a/b"]),
            (validate_dns1035_label, &["a", "a1"], &["1a", "", "A"]),
            (
                validate_qualified_name,
                &["a", "A_b.c", "x.y/Z"],
                &["", "/a", "a/", "a/b/c", "A/b", "_a", &long],
            ),
            (validate_label_value, &["", "a", "A_1.b"], &["-a", "a b", "a/b", &long]),
        ];
        for (check, good, bad) in cases {
            for text in good {
                assert_eq!(check(text), Vec::<String>::new(), "{text}");
            }
            for text in bad {
                assert_ne!(check(text), Vec::<String>::new(), "{text}");
            }
        }
    }

    #[test]
    fn refusals_have_the_words_of_the_api_server() {
        assert_eq!(
            validate_dns1123_subdomain("My_Pod"),
            [
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
              start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
              '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            ]
        );
        assert_eq!(validate_dns1123_label(&"a".repeat(64)), ["must be no more than 63 bytes"]);
        assert_eq!(
            validate_label_value("a b"),
            [
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
              start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
              for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            ]
        );
        assert_eq!(validate_qualified_name("/x"), ["prefix part must be non-empty"]);
    }

    #[test]
    fn maps_of_labels_and_annotations_are_checked_entry_by_entry() {
        let path = FieldPath::new("metadata.labels");
        assert_eq!(validate_labels(&Value::Null, &path), []);
        let errors = validate_labels(&json!({"ok": "yes", "bad key": "x", "n": 1}), &path);
        assert_eq!(errors.len(), 2);
        assert!(
            errors
                .iter()
                .any(|e| e.to_string().starts_with("metadata.labels: Invalid value: \"bad key\": name part"))
        );
        assert!(
            errors.iter().any(|e| e.to_string() == "metadata.labels[n]: Invalid value: 1: must be a string")
        );
        let path = FieldPath::new("metadata.annotations");
        assert_eq!(validate_annotations(&json!({"A.B/c": "any text\n"}), &path), []);
        let errors = validate_annotations(&json!({"a": "x".repeat(ANNOTATIONS_MAX)}), &path);
        assert_eq!(errors, [FieldError::too_long(&path, 262_144)]);
    }
}
