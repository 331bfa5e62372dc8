//! The live object with the applied one laid over it, and without what is to be removed.

use serde_json::{Map, Value};

use super::schema::{ApplyList, ApplyMap, ApplySchema, Handling, ListIdentity};
use super::set::Entry;
use super::{FieldSet, PathElement};

/// Lays `config` over `live`: objects and lists with identities are merged, all else is replaced.
pub(super) fn merge(schema: ApplySchema<'_>, live: &Value, config: &Value) -> Value {
    merged(schema, Some(live), Some(config)).unwrap_or_default()
}

/// `None` where nothing is left: two empty lists of items, for example.
fn merged(schema: ApplySchema<'_>, live: Option<&Value>, config: Option<&Value>) -> Option<Value> {
    let here = schema.here();
    match (here.handling(live.or(config)), here.handling(config.or(live))) {
        (Handling::Map(_), Handling::Map(of)) => map(schema, of, live, config),
        (Handling::List(_), Handling::List(of)) => list(schema, of, live, config),
        _ => config.or(live).cloned(),
    }
}

fn fields_of(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object).filter(|fields| !fields.is_empty())
}

fn map(
    schema: ApplySchema<'_>,
    of: &ApplyMap,
    live: Option<&Value>,
    config: Option<&Value>,
) -> Option<Value> {
    let (live_fields, config_fields) = (fields_of(live), fields_of(config));
    if of.is_atomic || (live_fields.is_none() && config_fields.is_none()) {
        return config.or(live).cloned();
    }
    let Some(config_fields) = config_fields else { return live.cloned() };
    let mut out = live_fields.cloned().unwrap_or_default();
    for (name, value) in config_fields {
        let inner = schema.at(of.type_of(name));
        match merged(inner, out.get(name), Some(value)) {
            Some(value) => out.insert(name.clone(), value),
            None => out.remove(name),
        };
    }
    (!out.is_empty()).then_some(Value::Object(out))
}

fn items_of(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The items of both. Those of `config` keep its order, and the others of `live` stay between their neighbours as far as that goes.
fn list(
    schema: ApplySchema<'_>,
    of: &ApplyList,
    live: Option<&Value>,
    config: Option<&Value>,
) -> Option<Value> {
    let (lives, configs) = (items_of(live), items_of(config));
    if of.identity == ListIdentity::Atomic || (lives.is_empty() && configs.is_empty()) {
        return config.or(live).cloned();
    }
    let inner = schema.at(of.item);
    let elements = |items: &[Value]| -> Option<Vec<PathElement>> {
        items.iter().map(|item| schema.element_of(of, item).ok()).collect()
    };
    // Items without identity cannot be merged: an applied list is checked before, a live one may be older than its rules.
    let (Some(live_keys), Some(config_keys)) = (elements(lives), elements(configs)) else {
        return config.or(live).cloned();
    };
    let place = |keys: &[PathElement], wanted: &PathElement| keys.iter().position(|key| key == wanted);
    // An item of which the live list has several is not merged with any of them, and replaces the first.
    let partner = |key: &PathElement| {
        let mut found = live_keys.iter().zip(lives).filter(|(other, _)| *other == key);
        found.next().filter(|_| found.next().is_none()).map(|(_, item)| item)
    };
    let mut shared = config_keys.iter().filter(|key| place(&live_keys, key).is_some()).peekable();
    let mut taken = vec![false; configs.len()];
    let mut out = Vec::with_capacity(lives.len().max(configs.len()));
    let (mut at, mut next) = (0, 0);
    while at < lives.len() || next < configs.len() {
        if let (Some(live_key), Some(config_key)) = (live_keys.get(at), config_keys.get(next)) {
            if live_key == config_key {
                taken[next] = true;
                out.extend(merged(inner, partner(live_key), configs.get(next)));
                shared.next();
                (at, next) = (at + 1, next + 1);
                continue;
            }
            let is_shared = place(&config_keys, live_key).is_some();
            if is_shared && shared.peek().is_some_and(|wanted| *wanted != live_key) {
                // It comes later, where the applied list has it.
                at += 1;
                continue;
            }
        }
        if let Some(live_key) = live_keys.get(at) {
            match place(&config_keys, live_key) {
                None => {
                    out.push(lives[at].clone());
                    at += 1;
                    continue;
                }
                Some(place) if taken[place] => at += 1,
                Some(_) => {}
            }
        }
        if let Some(config_key) = config_keys.get(next) {
            taken[next] = true;
            out.extend(merged(inner, partner(config_key), configs.get(next)));
            next += 1;
            shared.next_if(|wanted| *wanted == config_key);
        }
    }
    (!out.is_empty()).then_some(Value::Array(out))
}

/// The value without the fields of the set. Null where nothing is left of an object or a list.
pub(super) fn remove(schema: ApplySchema<'_>, value: &Value, set: &FieldSet) -> Value {
    match (schema.here().handling(Some(value)), value) {
        (_, value) if set.is_empty() => value.clone(),
        (Handling::Map(of), Value::Object(fields)) if !of.is_atomic && !fields.is_empty() => {
            let mut out = Map::new();
            let mut entries = set.entries().iter().peekable();
            for (name, value) in fields {
                while entries
                    .next_if(|entry| entry.element.name().is_some_and(|other| other < name.as_str()))
                    .is_some()
                {}
                let found: Option<&&Entry> =
                    entries.peek().filter(|entry| entry.element.name() == Some(name.as_str()));
                match found {
                    Some(entry) if entry.is_member => {}
                    Some(entry) => {
                        out.insert(name.clone(), remove(schema.at(of.type_of(name)), value, &entry.below));
                    }
                    None => {
                        out.insert(name.clone(), value.clone());
                    }
                }
            }
            if out.is_empty() { Value::Null } else { Value::Object(out) }
        }
        (Handling::List(of), Value::Array(items))
            if of.identity != ListIdentity::Atomic && !items.is_empty() =>
        {
            let mut out = Vec::with_capacity(items.len());
            for item in items {
                let element = schema.element_of(of, item).ok();
                match element.as_ref().and_then(|element| set.find(element)) {
                    Some(entry) if entry.is_member => {}
                    Some(entry) => out.push(remove(schema.at(of.item), item, &entry.below)),
                    None => out.push(item.clone()),
                }
            }
            if out.is_empty() { Value::Null } else { Value::Array(out) }
        }
        (_, value) => value.clone(),
    }
}
