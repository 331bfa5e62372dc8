use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use crate::Error;

/// One condition on one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRequirement {
    /// The field as a dotted path: `status.phase`.
    pub field: String,
    /// Whether the value must differ (`!=`).
    pub is_negated: bool,
    /// The value that is compared.
    pub value: String,
}

/// Conditions on fields that must all hold: `metadata.name=x,status.phase!=Running`. The default matches everything.
///
/// Which fields a kind supports is for the server to check, by [`FieldSelector::requirements`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

impl FieldSelector {
    /// The conditions, in the order in which they were given.
    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }

    /// The value that a field must have, if the selector says so: to serve `metadata.name=x` by a look-up.
    pub fn exact(&self, field: &str) -> Option<&str> {
        let mut exact = self.requirements.iter().filter(|wanted| !wanted.is_negated && wanted.field == field);
        exact.next().map(|wanted| wanted.value.as_str())
    }

    /// Whether every condition holds. A field that is absent counts as the empty text.
    pub fn matches(&self, object: &Value) -> bool {
        self.requirements.iter().all(|wanted| {
            let found = wanted.field.split('.').try_fold(object, |value, name| value.get(name));
            (text_of(found.unwrap_or(&Value::Null)) == wanted.value) != wanted.is_negated
        })
    }
}

fn text_of(value: &Value) -> Cow<'_, str> {
    match value {
        Value::Null => Cow::Borrowed(""),
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

impl FromStr for FieldSelector {
    type Err = Error;

    /// Terms joined by commas, with `=`, `==` or `!=`; `\,`, `\=` and `\\` stand for the characters themselves in a value.
    fn from_str(input: &str) -> Result<Self, Error> {
        let mut requirements = Vec::new();
        for term in split_unescaped(input) {
            if !term.is_empty() {
                let refuse = || Error::FieldSelector { input: input.to_owned(), term: term.to_owned() };
                requirements.push(parse_term(term).ok_or_else(refuse)?);
            }
        }
        Ok(Self { requirements })
    }
}

fn split_unescaped(input: &str) -> Vec<&str> {
    let (mut terms, mut start, mut is_escaped) = (Vec::new(), 0, false);
    for (index, byte) in input.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b',' => {
                terms.push(&input[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    terms.push(&input[start..]);
    terms
}

fn parse_term(term: &str) -> Option<FieldRequirement> {
    let at = term.find(['=', '!'])?;
    let (field, rest) = term.split_at(at);
    let (is_negated, value) = rest
        .strip_prefix("!=")
        .map(|value| (true, value))
        .or_else(|| rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')).map(|value| (false, value)))?;
    let field = field.trim();
    if field.is_empty() {
        return None;
    }
    Some(FieldRequirement { field: field.to_owned(), is_negated, value: unescape(value)? })
}

fn unescape(value: &str) -> Option<String> {
    let mut text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => text.push(chars.next().filter(|escaped| matches!(escaped, '\\' | ',' | '='))?),
            '=' => return None,
            plain => text.push(plain),
        }
    }
    Some(text)
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, wanted) in self.requirements.iter().enumerate() {
            let value = wanted.value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}{}{value}", wanted.field, if wanted.is_negated { "!=" } else { "=" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_compared_as_text() {
        let pod = json!({
            "metadata": {"name": "p,1"}, "spec": {"unschedulable": true, "priority": 5}, "status": {"phase": "Running"},
        });
        let cases = [
            ("", true),
            ("status.phase=Running", true),
            ("status.phase==Running", true),
            ("status.phase!=Running", false),
            ("metadata.name=p\\,1,status.phase=Running", true),
            ("spec.unschedulable=true,spec.priority=5", true),
            ("spec.nodeName=", true),
            ("spec.nodeName!=", false),
            ("spec.nodeName=n1", false),
            ("status.phase.deeper=", true),
        ];
        for (selector, expected) in cases {
            assert_eq!(selector.parse::<FieldSelector>().unwrap().matches(&pod), expected, "{selector}");
        }
    }

    #[test]
    fn the_exact_value_of_a_field_can_be_read_off() {
        let selector: FieldSelector = "metadata.name=x,status.phase!=Running".parse().unwrap();
        assert_eq!(selector.exact("metadata.name"), Some("x"));
        assert_eq!(selector.exact("status.phase"), None);
        assert_eq!(selector.requirements().len(), 2);
    }

    #[test]
    fn a_term_without_meaning_is_named() {
        for (input, term) in
            [("a=b,c", "c"), ("=x", "=x"), ("a!b", "a!b"), ("a=b=c", "a=b=c"), ("a=\\x", "a=\\x")]
        {
            let error = input.parse::<FieldSelector>().unwrap_err();
            assert_eq!(error, Error::FieldSelector { input: input.into(), term: term.into() });
        }
    }

    proptest! {
        #[test]
        fn a_printed_selector_reads_back_the_same(value in "\\PC*", is_negated: bool) {
            let requirements = vec![FieldRequirement { field: "a.b".into(), is_negated, value }];
            let selector = FieldSelector { requirements };
            prop_assert_eq!(selector.to_string().parse::<FieldSelector>().unwrap(), selector);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC*") {
            let _ = text.parse::<FieldSelector>();
        }
    }
}
