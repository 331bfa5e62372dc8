//! The part of Kubernetes' JSONPath that printer columns and `kubectl -o jsonpath` use to name values.
//!
//! ```text
//!   .spec.replicas                      a field; a dot in a name is written \.
//!   .metadata.labels['nvidia.com/gpu']  a field with any name
//!   .items[0]  .items[-1]  .items[1:3]  items of a list
//!   .items[*]  .spec.*                  all items, all values
//!   ..name                              every field of this name, at any depth
//!   .conditions[?(@.type=="Ready")]     items for which the condition holds (== != < <= > >=, or that the value is there)
//! ```

use std::cmp::Ordering;
use std::str::FromStr;

use serde_json::Value;

use crate::Error;

/// A parsed JSONPath. Braces around it and a leading `$` are allowed and mean nothing.
///
/// ```
/// use serde_json::json;
/// let path: gantry_apimachinery::JsonPath = r#".status.conditions[?(@.type=="Ready")].status"#.parse()?;
/// let node = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
/// assert_eq!(path.find(&node), [&json!("True")]);
/// # Ok::<(), gantry_apimachinery::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    Every,
    Recursive,
    /// `[start:end]`, negative from the end.
    Slice(Option<i64>, Option<i64>),
    Index(i64),
    Filter(Filter),
}

#[derive(Debug, Clone, PartialEq)]
struct Filter {
    path: Vec<Step>,
    condition: Option<(Comparison, Value)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl JsonPath {
    /// The values that the path names, in document order; none when there are none.
    pub fn find<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        walk(&self.steps, value)
    }
}

fn walk<'v>(steps: &[Step], value: &'v Value) -> Vec<&'v Value> {
    steps
        .iter()
        .fold(vec![value], |found, step| found.into_iter().flat_map(|value| step.apply(value)).collect())
}

impl Step {
    fn apply<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        match self {
            Self::Field(name) => value.get(name).into_iter().collect(),
            Self::Every => children(value).collect(),
            Self::Recursive => {
                let mut found = vec![value];
                children(value).for_each(|child| found.extend(Self::Recursive.apply(child)));
                found
            }
            Self::Index(index) => {
                let Value::Array(items) = value else { return Vec::new() };
                position(*index, items.len()).and_then(|index| items.get(index)).into_iter().collect()
            }
            Self::Slice(start, end) => {
                let Value::Array(items) = value else { return Vec::new() };
                let clamp = |bound: i64| position(bound, items.len()).unwrap_or(0).min(items.len());
                let (start, end) = (clamp(start.unwrap_or(0)), end.map_or(items.len(), clamp));
                items.get(start..end).unwrap_or_default().iter().collect()
            }
            Self::Filter(filter) => match value {
                Value::Array(items) => items.iter().filter(|item| filter.accepts(item)).collect(),
                _ => Vec::new(),
            },
        }
    }
}

/// The place that an index means; `None` before the start.
fn position(index: i64, length: usize) -> Option<usize> {
    if index >= 0 {
        usize::try_from(index).ok()
    } else {
        length.checked_sub(usize::try_from(index.unsigned_abs()).ok()?)
    }
}

fn children(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(fields) => Box::new(fields.values()),
        _ => Box::new(std::iter::empty()),
    }
}

impl Filter {
    fn accepts(&self, item: &Value) -> bool {
        let found = walk(&self.path, item);
        match (&self.condition, found.first()) {
            (None, found) => found.is_some(),
            (Some(_), None) => false,
            (Some((comparison, wanted)), Some(found)) => comparison.holds(found, wanted),
        }
    }
}

impl Comparison {
    fn holds(self, left: &Value, right: &Value) -> bool {
        let order = match (left, right) {
            (Value::Number(left), Value::Number(right)) => match (left.as_i64(), right.as_i64()) {
                (Some(left), Some(right)) => Some(left.cmp(&right)),
                _ => left.as_f64().zip(right.as_f64()).and_then(|(left, right)| left.partial_cmp(&right)),
            },
            (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
            (left, right) => (left == right).then_some(Ordering::Equal),
        };
        match self {
            Self::Equal => order == Some(Ordering::Equal),
            Self::NotEqual => order != Some(Ordering::Equal),
            Self::Less => order == Some(Ordering::Less),
            Self::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Self::Greater => order == Some(Ordering::Greater),
            Self::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

impl FromStr for JsonPath {
    type Err = Error;

    fn from_str(input: &str) -> Result<Self, Error> {
        let inner = input.trim();
        let inner = inner.strip_prefix('{').and_then(|inner| inner.strip_suffix('}')).unwrap_or(inner);
        let inner = inner.strip_prefix('$').unwrap_or(inner);
        steps(inner, true)
            .map(|steps| Self { steps })
            .map_err(|reason| Error::JsonPath { input: input.to_owned(), reason })
    }
}

fn steps(mut rest: &str, allows_filter: bool) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("..") {
            // Each further one multiplies the search by the depth of the object.
            if steps.contains(&Step::Recursive) {
                return Err("\"..\" may stand once in a path".to_owned());
            }
            steps.push(Step::Recursive);
            // `..name` is `..` and then `.name`; `..[0]` needs no dot.
            rest = if after.starts_with('[') { after } else { &rest[1..] };
            if after.is_empty() {
                return Err("a name is missing after \"..\"".to_owned());
            }
        } else if let Some(after) = rest.strip_prefix('.') {
            let (name, after) = field_name(after)?;
            match name.as_str() {
                "*" => steps.push(Step::Every),
                // A single dot is the value itself.
                "" if after.is_empty() && steps.is_empty() => {}
                "" if after.starts_with('[') => {}
                "" => return Err("a name is missing after \".\"".to_owned()),
                _ => steps.push(Step::Field(name)),
            }
            rest = after;
        } else if let Some(after) = rest.strip_prefix('[') {
            let (inner, after) = bracket(after)?;
            steps.push(bracket_step(inner.trim(), allows_filter)?);
            rest = after;
        } else {
            return Err(format!("begin each step with \".\" or \"[\", not with {rest:?}"));
        }
    }
    Ok(steps)
}

fn field_name(text: &str) -> Result<(String, &str), String> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((index, char)) = chars.next() {
        match char {
            '.' | '[' => return Ok((name, &text[index..])),
            '\\' => name.push(chars.next().ok_or("nothing follows the last \"\\\"")?.1),
            plain => name.push(plain),
        }
    }
    Ok((name, ""))
}

/// What stands before the bracket that closes, brackets and quotes within respected, and what follows it.
fn bracket(text: &str) -> Result<(&str, &str), String> {
    let (mut depth, mut quote, mut is_escaped) = (0u32, None, false);
    for (index, char) in text.char_indices() {
        match (quote, char) {
            _ if is_escaped => is_escaped = false,
            (Some(_), '\\') => is_escaped = true,
            (Some(open), close) if open == close => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(char),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Ok((&text[..index], &text[index + 1..])),
            (None, ']') => depth -= 1,
            (None, _) => {}
        }
    }
    Err("a closing \"]\" is missing".to_owned())
}

fn bracket_step(inner: &str, allows_filter: bool) -> Result<Step, String> {
    let number =
        |text: &str| text.trim().parse::<i64>().map_err(|_| format!("{:?} is no index", text.trim()));
    if inner == "*" {
        return Ok(Step::Every);
    }
    if let Some(filter) = inner.strip_prefix("?(").and_then(|inner| inner.strip_suffix(')')) {
        return if allows_filter {
            parse_filter(filter).map(Step::Filter)
        } else {
            Err("a filter within a filter is not supported".to_owned())
        };
    }
    if let Some(name) = quoted(inner) {
        return Ok(Step::Field(name));
    }
    if let Some((start, end)) = inner.split_once(':') {
        let bound = |text: &str| if text.trim().is_empty() { Ok(None) } else { number(text).map(Some) };
        return Ok(Step::Slice(bound(start)?, bound(end)?));
    }
    number(inner)
        .map(Step::Index)
        .map_err(|_| format!("[{inner}] is none of [*], [0], [0:2], ['name'] and [?(@.field==\"value\")]"))
}

fn parse_filter(text: &str) -> Result<Filter, String> {
    const OPERATORS: [(&str, Comparison); 6] = [
        ("==", Comparison::Equal),
        ("!=", Comparison::NotEqual),
        ("<=", Comparison::LessOrEqual),
        (">=", Comparison::GreaterOrEqual),
        ("<", Comparison::Less),
        (">", Comparison::Greater),
    ];
    let path =
        text.trim().strip_prefix('@').ok_or("begin a filter with \"@\", as in ?(@.type==\"Ready\")")?;
    let end = operator_position(path);
    let (path, rest) = path.split_at(end);
    let path = steps(path.trim_end(), false)?;
    if rest.is_empty() {
        return Ok(Filter { path, condition: None });
    }
    let found = OPERATORS.iter().find_map(|(text, comparison)| Some((*comparison, rest.strip_prefix(text)?)));
    let (comparison, literal) = found.ok_or("compare with ==, !=, <, <=, > or >=")?;
    let literal = literal.trim();
    let wanted = match quoted(literal) {
        Some(text) => Value::String(text),
        None => serde_json::from_str(literal)
            .ok()
            .filter(|value: &Value| !value.is_array() && !value.is_object())
            .ok_or_else(|| format!("{literal:?} is no text in quotes, number, true, false or null"))?,
    };
    Ok(Filter { path, condition: Some((comparison, wanted)) })
}

/// Where the comparison begins: the first operator outside quotes and brackets.
fn operator_position(text: &str) -> usize {
    let (mut quote, mut depth) = (None, 0i32);
    for (index, char) in text.char_indices() {
        match (quote, char) {
            (Some(open), close) if open == close => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(char),
            (None, '[') => depth += 1,
            (None, ']') => depth -= 1,
            (None, '=' | '!' | '<' | '>') if depth == 0 => return index,
            (None, _) => {}
        }
    }
    text.len()
}

/// The text between quotes of either kind, `\` taking the next character as it is.
fn quoted(text: &str) -> Option<String> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
    let (mut plain, mut chars) = (String::new(), inner.chars());
    while let Some(char) = chars.next() {
        match char {
            '\\' => plain.push(chars.next()?),
            char if char == quote => return None,
            char => plain.push(char),
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_finds_what_kubectl_finds() {
        let object = json!({
            "spec": {"replicas": 3, "list": [1, 2, 3], "names": {"a": "x", "b": "y"}},
            "metadata": {"annotations": {"a.b/c": "dotted", "it's": "quoted"}, "name": "o"},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "n": 5, "metadata": {"name": "inner"}},
                {"type": "Other", "status": "False", "n": 7},
                {"n": 9},
            ]},
        });
        let cases = [
            (".spec.replicas", json!([3])),
            ("{.spec.replicas}", json!([3])),
            ("$.spec.replicas", json!([3])),
            (".spec.absent", json!([])),
            (".spec.replicas.deeper", json!([])),
            (".metadata.annotations['a.b/c']", json!(["dotted"])),
            (".metadata.annotations[\"a.b/c\"]", json!(["dotted"])),
            (".metadata.annotations.['a.b/c']", json!(["dotted"])),
            (".metadata.annotations.a\\.b/c", json!(["dotted"])),
            (".metadata.annotations['it\\'s']", json!(["quoted"])),
            (".spec.list[0]", json!([1])),
            (".spec.list[-1]", json!([3])),
            (".spec.list[9]", json!([])),
            (".spec.list[-9]", json!([])),
            (".spec.list[*]", json!([1, 2, 3])),
            (".spec.list[1:]", json!([2, 3])),
            (".spec.list[0:2]", json!([1, 2])),
            (".spec.list[2:1]", json!([])),
            (".spec.names.*", json!(["x", "y"])),
            (".spec.replicas[0]", json!([])),
            (".status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".status.conditions[?(@.type=='Ready')].status", json!(["True"])),
            (".status.conditions[?( @.type != \"Ready\" )].status", json!(["False"])),
            (".status.conditions[?(@.n>5)].n", json!([7, 9])),
            (".status.conditions[?(@.n<=5)].n", json!([5])),
            (".status.conditions[?(@.type)].n", json!([5, 7])),
            (".status.conditions[?(@['type']==\"Other\")].n", json!([7])),
            ("..name", json!(["o", "inner"])),
        ];
        for (path, expected) in cases {
            let found = path.parse::<JsonPath>().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(json!(found.find(&object)), expected, "{path}");
        }
        assert_eq!(".".parse::<JsonPath>().unwrap().find(&object), [&object]);
    }

    #[test]
    fn a_path_that_has_no_meaning_is_refused_with_the_fix() {
        let cases = [
            ("spec.x", "begin each step with \".\" or \"[\", not with \"spec.x\""),
            (".spec..", "a name is missing after \"..\""),
            ("..a..b", "\"..\" may stand once"),
            (".spec.", "a name is missing after \".\""),
            (".a[0", "a closing \"]\" is missing"),
            (".a[x]", "[x] is none of"),
            (".a[1:x]", "\"x\" is no index"),
            (".a[?(.b)]", "begin a filter with \"@\""),
            (".a[?(@.b=1)]", "compare with"),
            (".a[?(@.b==x)]", "\"x\" is no text in quotes"),
            (".a[?(@.b[?(@.c)])]", "a filter within a filter is not supported"),
            (".a\\", "nothing follows"),
        ];
        for (input, reason) in cases {
            let text = input.parse::<JsonPath>().unwrap_err().to_string();
            assert!(text.contains(reason) && text.contains(&format!("{input:?}")), "{input}: {text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC*") {
            let _ = text.parse::<JsonPath>();
        }

        #[test]
        fn no_path_makes_the_search_panic(text in "([.]{1,2}[ab*]?|\\[(-?[0-9]{1,19}|[*]|-?[0-9]:-?[0-9]|\\?\\(@\\.[ab](==1)?\\))\\]){0,6}") {
            if let Ok(path) = text.parse::<JsonPath>() {
                path.find(&json!({"a": [{"b": 1}, [1, 2]], "b": {"a": null}}));
            }
        }
    }
}
