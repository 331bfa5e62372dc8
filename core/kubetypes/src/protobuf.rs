//! Kubernetes' protobuf bodies into JSON.
//!
//! A body is the magic `6b 38 73 00`, then a `runtime.Unknown`: `typeMeta` (1) with `apiVersion` (1) and `kind` (2), `raw` (2) with the
//! object's own message, `contentEncoding` (3), `contentType` (4). What is absent from the message is written as Go writes its zero value,
//! so that the JSON is what the API server would store.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Number, Value};

use crate::time::{go_duration, rfc3339};
use crate::{Error, Field, Leaf, Scalar, Shape, Type, TypeId, Types};

/// What every protobuf body begins with.
pub const PROTOBUF_MAGIC: [u8; 4] = *b"k8s\0";

/// Longest body that is decoded, in bytes: the API server's own limit on a request.
pub const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;

/// Messages inside messages; custom resources' schemas are the deepest that are met, below 40.
const MAX_DEPTH: usize = 100;

/// The object of an `application/vnd.kubernetes.protobuf` body as JSON, with its `apiVersion` and `kind`.
///
/// # Errors
///
/// [`Error::NotKubernetesProtobuf`], [`Error::TooLong`], [`Error::UnknownKind`], [`Error::UnsupportedContent`], and [`Error::Malformed`] with the
/// offset in the body.
pub fn decode(types: &Types, body: &[u8]) -> Result<Value, Error> {
    if body.len() > MAX_BODY_BYTES {
        return Err(Error::TooLong { length: body.len(), limit: MAX_BODY_BYTES });
    }
    Decoder { types }.envelope(body, 0, 0)
}

/// Bytes with their place in the body.
#[derive(Clone, Copy)]
struct Input<'a> {
    bytes: &'a [u8],
    offset: usize,
}

enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32,
    Bytes(Input<'a>),
}

impl<'a> Input<'a> {
    fn fault<T>(&self, what: &'static str) -> Result<T, Error> {
        Err(Error::Malformed { offset: self.offset, what })
    }

    fn take(&mut self, count: usize) -> Result<Self, Error> {
        let Some((head, tail)) = self.bytes.split_at_checked(count) else {
            return self.fault("a value ends after the bytes do");
        };
        let taken = Self { bytes: head, offset: self.offset };
        self.bytes = tail;
        self.offset += count;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Error> {
        let start = *self;
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = self.take(1)?.bytes[0];
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        start.fault("a number has more than 64 bits")
    }

    /// The next field's number and value; none at the end.
    fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, Error> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let start = *self;
        let tag = self.varint()?;
        let Some(number) = u32::try_from(tag >> 3).ok().filter(|&number| number != 0) else {
            return start.fault("a field's number is out of range");
        };
        let value = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(self.fixed64()?),
            2 => {
                let at = *self;
                let Ok(length) = usize::try_from(self.varint()?) else {
                    return at.fault("a length is out of range");
                };
                Wire::Bytes(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                Wire::Fixed32
            }
            _ => return start.fault("groups and unknown wire types are not used by Kubernetes"),
        };
        Ok(Some((number, value)))
    }

    fn fixed64(&mut self) -> Result<u64, Error> {
        let bytes = self.take(8)?.bytes;
        Ok(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn text(&self) -> Result<&'a str, Error> {
        std::str::from_utf8(self.bytes).or_else(|_| self.fault("text is not UTF-8"))
    }
}

impl<'a> Wire<'a> {
    fn bytes(self, at: Input<'_>) -> Result<Input<'a>, Error> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => at.fault("the field's wire type must be length-delimited"),
        }
    }

    fn varint(&self, at: Input<'_>) -> Result<u64, Error> {
        match self {
            Self::Varint(value) => Ok(*value),
            _ => at.fault("the field's wire type must be varint"),
        }
    }
}

struct Decoder<'t> {
    types: &'t Types,
}

impl Decoder<'_> {
    fn envelope(&self, body: &[u8], offset: usize, depth: usize) -> Result<Value, Error> {
        let Some(rest) = body.strip_prefix(&PROTOBUF_MAGIC) else { return Err(Error::NotKubernetesProtobuf) };
        let mut input = Input { bytes: rest, offset: offset + PROTOBUF_MAGIC.len() };
        let (mut api_version, mut kind, mut encoding, mut content_type) = ("", "", "", "");
        let mut raw = Input { bytes: &[], offset: input.offset };
        loop {
            let at = input;
            let Some((number, value)) = input.next()? else { break };
            match number {
                1 => {
                    let mut meta = value.bytes(at)?;
                    loop {
                        let at = meta;
                        let Some((number, value)) = meta.next()? else { break };
                        match number {
                            1 => api_version = value.bytes(at)?.text()?,
                            2 => kind = value.bytes(at)?.text()?,
                            _ => {}
                        }
                    }
                }
                2 => raw = value.bytes(at)?,
                3 => encoding = value.bytes(at)?.text()?,
                4 => content_type = value.bytes(at)?.text()?,
                _ => {}
            }
        }
        let mut object = match (encoding, content_type) {
            ("", "" | "application/vnd.kubernetes.protobuf") => {
                let Some(known) = self.types.kind_of(api_version, kind) else {
                    return Err(Error::UnknownKind {
                        api_version: api_version.to_owned(),
                        kind: kind.to_owned(),
                    });
                };
                self.message(known.type_id, raw, depth)?
            }
            ("", "application/json") => json(raw)?,
            _ => {
                return Err(Error::UnsupportedContent {
                    content_type: content_type.to_owned(),
                    encoding: encoding.to_owned(),
                });
            }
        };
        if let Value::Object(object) = &mut object {
            for (name, text) in [("apiVersion", api_version), ("kind", kind)] {
                if !text.is_empty() {
                    object.insert(name.to_owned(), text.into());
                }
            }
        }
        Ok(object)
    }

    /// A message as JSON: an object, or the only field's value for a type that is unwrapped.
    fn message(&self, id: TypeId, input: Input<'_>, depth: usize) -> Result<Value, Error> {
        let of = self.types.type_of(id);
        let mut object = Map::new();
        self.fields(of, input, depth, &mut object)?;
        match of.fields.first() {
            Some(only) if of.unwrap => Ok(object.remove(only.name).unwrap_or(Value::Null)),
            _ => Ok(Value::Object(object)),
        }
    }

    fn fields(
        &self,
        of: &Type,
        mut input: Input<'_>,
        depth: usize,
        object: &mut Map<String, Value>,
    ) -> Result<(), Error> {
        if depth >= MAX_DEPTH {
            return input.fault("messages are nested too deeply");
        }
        let start = input;
        let mut found: Vec<Option<Value>> = vec![None; of.fields.len()];
        let mut inline: Vec<Input<'_>> = vec![Input { bytes: &[], offset: start.offset }; of.fields.len()];
        loop {
            let at = input;
            let Some((number, wire)) = input.next()? else { break };
            let Some(index) = of.fields.iter().position(|field| field.number == Some(number)) else {
                continue;
            };
            let field = &of.fields[index];
            match field.shape {
                Shape::One(_) if field.inline => inline[index] = wire.bytes(at)?,
                Shape::One(leaf) => found[index] = Some(self.leaf(leaf, wire, at, depth)?),
                Shape::List(leaf) => {
                    let list = found[index].get_or_insert_with(|| Value::Array(Vec::new()));
                    let Value::Array(list) = list else { continue };
                    match (leaf, wire) {
                        (
                            Leaf::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::Bool),
                            Wire::Bytes(mut packed),
                        ) => {
                            while !packed.bytes.is_empty() {
                                let at = packed;
                                let value = Wire::Varint(packed.varint()?);
                                list.push(self.leaf(leaf, value, at, depth)?);
                            }
                        }
                        (leaf, wire) => list.push(self.leaf(leaf, wire, at, depth)?),
                    }
                }
                Shape::Map(leaf) => {
                    let (key, value) = self.entry(leaf, wire.bytes(at)?, depth)?;
                    let map = found[index].get_or_insert_with(|| Value::Object(Map::new()));
                    if let Value::Object(map) = map {
                        map.insert(key, value);
                    }
                }
            }
        }
        for (index, field) in of.fields.iter().enumerate().filter(|(_, field)| field.number.is_some()) {
            if let (true, Shape::One(Leaf::Message(id))) = (field.inline, field.shape) {
                self.fields(self.types.type_of(id), inline[index], depth + 1, object)?;
            } else if let Some(value) = self.written(field, found[index].take(), start, depth)? {
                object.insert(field.name.to_owned(), value);
            }
        }
        Ok(())
    }

    fn entry(&self, leaf: Leaf, mut entry: Input<'_>, depth: usize) -> Result<(String, Value), Error> {
        let start = entry;
        let (mut key, mut value) = ("", None);
        loop {
            let at = entry;
            let Some((number, wire)) = entry.next()? else { break };
            match number {
                1 => key = wire.bytes(at)?.text()?,
                2 => value = Some(self.leaf(leaf, wire, at, depth)?),
                _ => {}
            }
        }
        let value = match value {
            Some(value) => value,
            None => self.zero(leaf, start, depth)?,
        };
        Ok((key.to_owned(), value))
    }

    fn leaf(&self, leaf: Leaf, wire: Wire<'_>, at: Input<'_>, depth: usize) -> Result<Value, Error> {
        let scalar = match leaf {
            Leaf::Message(id) => return self.message(id, wire.bytes(at)?, depth + 1),
            Leaf::Scalar(scalar) => scalar,
        };
        Ok(match scalar {
            Scalar::String => wire.bytes(at)?.text()?.into(),
            Scalar::Bytes => STANDARD.encode(wire.bytes(at)?.bytes).into(),
            Scalar::Bool => (wire.varint(at)? != 0).into(),
            Scalar::Int64 => wire.varint(at)?.cast_signed().into(),
            Scalar::Int32 => int32(wire.varint(at)?).into(),
            Scalar::Double => match wire {
                Wire::Fixed64(bits) => match Number::from_f64(f64::from_bits(bits)) {
                    Some(number) => number.into(),
                    None => return at.fault("JSON has no infinity and no NaN"),
                },
                _ => return at.fault("the field's wire type must be 64 bits"),
            },
            _ => self.special(scalar, wire.bytes(at)?, depth)?,
        })
    }

    /// The messages that are written in JSON as something else than an object of their fields.
    fn special(&self, scalar: Scalar, mut input: Input<'_>, depth: usize) -> Result<Value, Error> {
        let start = input;
        let schema = self.types.id("apiextensions.v1.JSONSchemaProps");
        let (mut numbers, mut text, mut object, mut list) = ([0_u64; 2], None, None, Vec::new());
        loop {
            let at = input;
            let Some((number, wire)) = input.next()? else { break };
            match (scalar, number, wire) {
                (Scalar::Time | Scalar::MicroTime | Scalar::IntOrString, 1 | 2, Wire::Varint(value)) => {
                    numbers[usize::from(number == 2)] = value;
                }
                (Scalar::Duration | Scalar::SchemaOrBool, 1, Wire::Varint(value)) => numbers[0] = value,
                (Scalar::Quantity | Scalar::Raw, 1, Wire::Bytes(bytes)) => text = Some(bytes),
                (Scalar::IntOrString, 3, Wire::Bytes(bytes)) => text = Some(bytes),
                (Scalar::SchemaOrBool, 2, Wire::Bytes(bytes))
                | (Scalar::SchemaOrArray | Scalar::SchemaOrStrings, 1, Wire::Bytes(bytes)) => {
                    let Some(id) = schema else { return at.fault("the tables have no schema type") };
                    object = Some(self.message(id, bytes, depth + 1)?);
                }
                (Scalar::SchemaOrArray, 2, Wire::Bytes(bytes)) => {
                    let Some(id) = schema else { return at.fault("the tables have no schema type") };
                    list.push(self.message(id, bytes, depth + 1)?);
                }
                (Scalar::SchemaOrStrings, 2, Wire::Bytes(bytes)) => list.push(bytes.text()?.into()),
                (_, 1..=3, _) => return at.fault("the field's wire type does not fit its message"),
                _ => {}
            }
        }
        let text = text.filter(|text| !text.bytes.is_empty());
        Ok(match scalar {
            // No bytes at all are Go's zero time.
            Scalar::Time | Scalar::MicroTime if start.bytes.is_empty() => Value::Null,
            Scalar::Time | Scalar::MicroTime => {
                let micros = (scalar == Scalar::MicroTime)
                    .then(|| int32(numbers[1]).clamp(0, 999_999_999).unsigned_abs() / 1_000);
                match rfc3339(numbers[0].cast_signed(), micros) {
                    Some(text) => text.into(),
                    None => return start.fault("the year is not within 0 to 9999"),
                }
            }
            Scalar::Duration => go_duration(numbers[0].cast_signed()).into(),
            Scalar::Quantity => text.map_or(Ok("0"), |text| text.text())?.into(),
            Scalar::IntOrString if numbers[0] == 0 => int32(numbers[1]).into(),
            Scalar::IntOrString => text.map_or(Ok(""), |text| text.text())?.into(),
            Scalar::Raw => match text {
                None => Value::Null,
                Some(raw) if raw.bytes.starts_with(&PROTOBUF_MAGIC) => {
                    if depth >= MAX_DEPTH {
                        return raw.fault("messages are nested too deeply");
                    }
                    self.envelope(raw.bytes, raw.offset, depth + 1)?
                }
                Some(raw) => json(raw)?,
            },
            Scalar::SchemaOrBool => object.unwrap_or(Value::Bool(numbers[0] != 0)),
            _ if !list.is_empty() => Value::Array(list),
            _ => object.unwrap_or(Value::Null),
        })
    }

    /// What JSON has of a field: none when it is left out.
    fn written(
        &self,
        field: &Field,
        value: Option<Value>,
        at: Input<'_>,
        depth: usize,
    ) -> Result<Option<Value>, Error> {
        let Shape::One(leaf) = field.shape else {
            return Ok(value.or_else(|| field.always.then_some(Value::Null)));
        };
        if field.pointer {
            return Ok(value.or_else(|| field.always.then_some(Value::Null)));
        }
        let value = match value {
            Some(value) => value,
            None => self.zero(leaf, at, depth)?,
        };
        // Go's `omitempty` leaves out zero scalars, never structures; special messages are structures.
        let plain = matches!(
            leaf,
            Leaf::Scalar(
                Scalar::String
                    | Scalar::Bytes
                    | Scalar::Bool
                    | Scalar::Int32
                    | Scalar::Int64
                    | Scalar::Double
            )
        );
        let left_out = (plain && !field.always && is_zero(&value)) || (field.omit_zero && value.is_null());
        Ok((!left_out).then_some(value))
    }

    fn zero(&self, leaf: Leaf, at: Input<'_>, depth: usize) -> Result<Value, Error> {
        let empty = Input { bytes: &[], offset: at.offset };
        match leaf {
            Leaf::Message(id) => self.message(id, empty, depth + 1),
            Leaf::Scalar(Scalar::String | Scalar::Bytes) => Ok("".into()),
            Leaf::Scalar(Scalar::Bool) => Ok(false.into()),
            Leaf::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::Double) => Ok(0.into()),
            Leaf::Scalar(scalar) => self.special(scalar, empty, depth),
        }
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(value) => !value,
        _ => false,
    }
}

/// The low 32 bits, as protobuf readers do with a number that is too long.
fn int32(value: u64) -> i32 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "protobuf defines int32 as the low bits of the varint"
    )]
    let low = value as u32;
    low.cast_signed()
}

fn json(input: Input<'_>) -> Result<Value, Error> {
    serde_json::from_slice(input.bytes).or_else(|_| input.fault("raw bytes are not JSON"))
}

#[cfg(test)]
mod tests;
