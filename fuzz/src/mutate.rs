//! Inputs that resemble the seeds. The same seeds give the same inputs.

use serde_json::{Value, json};

/// The longest input.
const LONGEST: usize = 4096;

/// What parsers of numbers, of nested text and of quoted text stumble over.
const TOKENS: &[&[u8]] = &[
    b"0",
    b"-1",
    b"1",
    b"9223372036854775807",
    b"18446744073709551616",
    b"1e999",
    b"0.5",
    b"null",
    b"true",
    b"\"\"",
    b"[]",
    b"{}",
    b"[[[[[[[[",
    b"\\",
    b"\"",
    b"'",
    b"\\u0000",
    b"\xff",
    b"\xc3\xa9",
    b"\xe2\x80\xa8",
    b"\0",
    b"\n",
    b" ",
    b"%",
    b"..",
    b"/",
    b":",
    b",",
    b"=",
    b"-",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\0\0\0",
];

/// A seed with one to four changes.
pub(crate) fn mutation(seeds: &[&[u8]], random: &mut Random) -> Vec<u8> {
    let mut data = pick(seeds, random);
    // Flipped bytes of JSON are refused by its parser; what reads the values is reached by changing values.
    let structured = random.below(2) == 0;
    for _ in 0..=random.below(4) {
        match structured.then(|| change_value(&data, random)).flatten() {
            Some(changed) => data = changed,
            None => change_bytes(&mut data, seeds, random),
        }
    }
    data.truncate(LONGEST);
    data
}

fn pick(seeds: &[&[u8]], random: &mut Random) -> Vec<u8> {
    if seeds.is_empty() { Vec::new() } else { seeds[random.below(seeds.len())].to_vec() }
}

fn change_bytes(data: &mut Vec<u8>, seeds: &[&[u8]], random: &mut Random) {
    let at = random.below(data.len() + 1);
    let end = (at + random.below(16)).min(data.len());
    match random.below(8) {
        0 if at < data.len() => data[at] ^= 1 << random.below(8),
        1 if at < data.len() => data[at] = random.byte(),
        2 => drop(data.drain(at..end)),
        3 => drop(data.splice(at..at, TOKENS[random.below(TOKENS.len())].iter().copied())),
        4 => drop(data.splice(at..end, TOKENS[random.below(TOKENS.len())].iter().copied())),
        5 => {
            let again = data[at..end].repeat(1 + random.below(8));
            data.splice(at..at, again);
        }
        6 => {
            let other = pick(seeds, random);
            data.truncate(at);
            data.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
        _ => {
            let bytes: Vec<u8> = (0..random.below(8)).map(|_| random.byte()).collect();
            data.splice(at..end, bytes);
        }
    }
}

/// One of the documents that zero bytes separate, if it is JSON, with one value changed.
fn change_value(data: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = data.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    let part = random.below(parts.len());
    let mut document: Value =
        serde_json::from_slice(&parts[part]).ok().filter(|value: &Value| !value.is_null())?;
    let count = size(&document);
    let mut steps = random.below(count);
    let other = {
        let mut steps = random.below(count);
        find(&mut document, &mut steps).map(|value| value.clone())?
    };
    let value = find(&mut document, &mut steps)?;
    match (random.below(6), &mut *value) {
        (0, Value::Array(list)) if !list.is_empty() => {
            let again = list[random.below(list.len())].clone();
            list.push(again);
        }
        (1, Value::Array(list)) if !list.is_empty() => drop(list.remove(random.below(list.len()))),
        (0 | 1, Value::Object(fields)) if !fields.is_empty() => {
            let name = fields.keys().nth(random.below(fields.len())).cloned()?;
            let value = fields.remove(&name);
            if random.below(2) == 0 {
                fields.insert(format!("{name}x"), value?);
            }
        }
        (2, Value::String(text)) => {
            let mut bytes = text.clone().into_bytes();
            change_bytes(&mut bytes, &[], random);
            *text = String::from_utf8_lossy(&bytes).into_owned();
        }
        (3, _) => *value = other,
        _ => *value = plain_value(random),
    }
    parts[part] = document.to_string().into_bytes();
    Some(parts.join(&0))
}

fn plain_value(random: &mut Random) -> Value {
    let values = json!([
        null, true, false, 0, 1, -1, 7, 255, 65_536, 4_294_967_296_u64, i64::MAX, u64::MAX, 0.5, 1e300, "", "x", "0", "-1", "1",
        "1.5", "9223372036854775808", "1e6", "a/b", "a=b", "é\u{2028}\0", " ", "true", "null", [], {}, [null], [{}], {"": {}}, {"a": "b"},
    ]);
    let values = values.as_array().expect("a list");
    values[random.below(values.len())].clone()
}

/// How many values a document has.
fn size(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(size).sum(),
        Value::Object(fields) => fields.values().map(size).sum(),
        _ => 0,
    }
}

/// The value that stands so many steps into the document.
fn find<'a>(value: &'a mut Value, steps: &mut usize) -> Option<&'a mut Value> {
    if *steps == 0 {
        return Some(value);
    }
    *steps -= 1;
    match value {
        Value::Array(list) => list.iter_mut().find_map(|item| find(item, steps)),
        Value::Object(fields) => fields.values_mut().find_map(|item| find(item, steps)),
        _ => None,
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        usize::try_from(self.next() % bound).expect("invariant: below a usize")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}
