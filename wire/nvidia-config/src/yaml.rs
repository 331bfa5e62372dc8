//! YAML as a tree in which everything knows its line.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Spanned};

use crate::Error;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    /// From 1.
    pub(crate) line: u64,
    pub(crate) value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Number(f64),
    Text(String),
    List(Vec<Node>),
    /// In the file's order, with keys that stand twice.
    Map(Vec<(Key, Node)>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Key {
    pub(crate) line: u64,
    pub(crate) name: String,
}

impl Value {
    /// As it would be written in a flag.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Null | Self::Map(_) => String::new(),
            Self::Bool(value) => value.to_string(),
            Self::Integer(number) => number.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
            Self::List(list) => list.iter().map(|node| node.value.text()).collect::<Vec<_>>().join(","),
        }
    }

    /// What it is, for an error: `the number 4`, `a list`.
    pub(crate) fn describe(&self) -> String {
        let quoted = |text: &str| format!("the text {:?}", crate::error::short(text));
        match self {
            Self::Null => "nothing".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Integer(number) => format!("the number {number}"),
            Self::Number(number) => format!("the number {number}"),
            Self::Text(text) => quoted(text),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) => "a map".to_owned(),
        }
    }
}

/// Reads one document.
pub(crate) fn parse(text: &str) -> Result<Node, Error> {
    let options = serde_saphyr::options! {
        // Reported by us, with the path.
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        with_snippet: false,
    };
    let root: Spanned<Value> = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().map(|location| location.line()).filter(|line| *line > 0);
        // The first line says what; the place is told by the variant.
        let message = error.without_snippet().to_string();
        let message = message.lines().next().unwrap_or_default();
        Error::Syntax { line, message: crate::error::short(message) }
    })?;
    Ok(node(root))
}

fn node(spanned: Spanned<Value>) -> Node {
    Node { line: spanned.referenced.line().max(1), value: spanned.value }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Integer(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Integer(number.into()))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Value, E> {
        Ok(Value::Integer(number))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(node(item));
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            let value = node(entries.next_value()?);
            map.push((Key { line: key.referenced.line().max(1), name: key.value }, value));
        }
        Ok(Value::Map(map))
    }
}
