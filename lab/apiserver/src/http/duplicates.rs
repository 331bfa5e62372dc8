//! JSON in which names that occur twice in one object are noticed. The last value counts, as in Go's decoder.

use std::fmt::Write as _;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Parses one value; the second part names the fields that occur again, as in `spec.containers[0].image`.
pub(super) fn parse(bytes: &[u8]) -> serde_json::Result<(Value, Vec<String>)> {
    let mut found = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Seed { path: &Path::Root, found: &mut found }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok((value, found))
}

/// The way to the present value; it lives on the stack and becomes text only if it is needed.
enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl Path<'_> {
    fn write(&self, out: &mut String) {
        match self {
            Self::Root => {}
            Self::Field(parent, name) => {
                parent.write(out);
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(name);
            }
            Self::Item(parent, index) => {
                parent.write(out);
                let _ = write!(out, "[{index}]");
            }
        }
    }
}

struct Seed<'a> {
    path: &'a Path<'a>,
    found: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("not a JSON number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let path = Path::Item(self.path, list.len());
            match seq.next_element_seed(Seed { path: &path, found: self.found })? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let path = Path::Field(self.path, &name);
            let value = access.next_value_seed(Seed { path: &path, found: self.found })?;
            if map.contains_key(&name) {
                let mut text = String::new();
                path.write(&mut text);
                self.found.push(text);
            }
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn repeated_names_are_found_wherever_they_are() {
        let text = br#"{"a": 1, "l": [{"x": 1.5, "x": null}], "a": {"b": "s", "b": -2}}"#;
        let (value, found) = parse(text).unwrap();
        assert_eq!(value, json!({"a": {"b": -2}, "l": [{"x": null}]}));
        assert_eq!(found, ["l[0].x", "a.b", "a"]);
    }

    #[test]
    fn a_number_that_is_sent_back_as_it_was_given_is_the_same() {
        let (value, _) = parse(b"144446744073709551616").unwrap();
        assert_eq!(parse(value.to_string().as_bytes()).unwrap().0, value);
    }

    #[test]
    fn anything_else_is_as_in_plain_json() {
        assert!(parse(b"{} x").is_err());
        let deep = "[".repeat(100_000);
        assert!(parse(deep.as_bytes()).is_err(), "depth is bounded");
    }
}
