//! What differs between two states of an object, field by field.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use super::element::same;
use super::schema::{ApplyList, ApplyMap, ApplySchema, ApplyTypes, Handling, ListIdentity};
use super::set::Entry;
use super::{FieldSet, PathElement};

/// The fields that differ. No field is in two of the sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    pub(super) added: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) removed: FieldSet,
}

impl Comparison {
    pub(super) fn is_same(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    /// Without these fields and what is below them.
    pub(super) fn without(self, fields: &FieldSet) -> Self {
        Self {
            added: self.added.recursive_difference(fields),
            modified: self.modified.recursive_difference(fields),
            removed: self.removed.recursive_difference(fields),
        }
    }
}

/// Compares two states of an object.
pub(super) fn compare(schema: ApplySchema<'_>, old: &Value, new: &Value) -> Comparison {
    let found = differences(schema, Some(old), Some(new));
    Comparison {
        added: found.added.below(),
        modified: found.modified.below(),
        removed: found.removed.below(),
    }
}

/// One of the three sets while it grows: the place itself, and what is below.
#[derive(Default)]
struct Part {
    is_member: bool,
    entries: Vec<Entry>,
}

impl Part {
    fn below(self) -> FieldSet {
        FieldSet::from_sorted(self.entries)
    }

    /// Takes in what was found one step further.
    fn take(&mut self, element: &PathElement, part: Self) {
        if part.is_member || !part.entries.is_empty() {
            let is_member = part.is_member;
            self.entries.push(Entry { element: element.clone(), is_member, below: part.below() });
        }
    }
}

#[derive(Default)]
struct Found {
    added: Part,
    modified: Part,
    removed: Part,
}

impl Found {
    fn take(&mut self, element: &PathElement, found: Self) {
        self.added.take(element, found.added);
        self.modified.take(element, found.modified);
        self.removed.take(element, found.removed);
    }

    fn is_empty(&self) -> bool {
        [&self.added, &self.modified, &self.removed]
            .iter()
            .all(|part| !part.is_member && part.entries.is_empty())
    }
}

fn differences(schema: ApplySchema<'_>, old: Option<&Value>, new: Option<&Value>) -> Found {
    let mut found = Found::default();
    let here = schema.here();
    let is_leaf = match (here.handling(old.or(new)), here.handling(new.or(old))) {
        (Handling::Map(_), Handling::Map(of)) => map(schema, of, old, new, &mut found),
        (Handling::List(_), Handling::List(of)) => list(schema, of, old, new, &mut found),
        (Handling::Leaf, Handling::Leaf) => true,
        // A value of another shape: what was in the old one is gone, what is in the new one came.
        _ => {
            found.removed = differences(schema, old, None).removed;
            found.added = differences(schema, None, new).added;
            (found.removed.is_member, found.added.is_member) = (false, false);
            true
        }
    };
    if is_leaf {
        match (old, new) {
            (Some(old), Some(new)) => found.modified.is_member = !same(old, new),
            (None, _) => found.added.is_member = true,
            (_, None) => found.removed.is_member = true,
        }
    } else {
        found.added.is_member |= old.is_none();
        found.removed.is_member |= new.is_none();
    }
    found
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn fields_of(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object).filter(|fields| !fields.is_empty())
}

/// Compares the fields of two objects. Whether they are a leaf instead.
fn map(
    schema: ApplySchema<'_>,
    map: &ApplyMap,
    old: Option<&Value>,
    new: Option<&Value>,
    found: &mut Found,
) -> bool {
    let (old_fields, new_fields) = (fields_of(old), fields_of(new));
    // Two empty objects are a leaf: thus an empty one differs from one that is absent.
    if map.is_atomic || (old_fields.is_none() && new_fields.is_none()) {
        return true;
    }
    let mut olds = old_fields.into_iter().flatten().peekable();
    let mut news = new_fields.into_iter().flatten().peekable();
    let mut unsets = map.fields.iter().filter(|field| field.unset.is_some()).peekable();
    let mut declared = map.fields.iter().peekable();
    loop {
        let name = [
            olds.peek().map(|(name, _)| name.as_str()),
            news.peek().map(|(name, _)| name.as_str()),
            unsets.peek().map(|field| field.name.as_ref()),
        ];
        let Some(name) = name.into_iter().flatten().min() else { return false };
        let old_value = olds.next_if(|(other, _)| *other == name).map(|(_, value)| value);
        let new_value = news.next_if(|(other, _)| *other == name).map(|(_, value)| value);
        unsets.next_if(|field| field.name.as_ref() == name);
        while declared.next_if(|field| field.name.as_ref() < name).is_some() {}
        let field = declared.peek().filter(|field| field.name.as_ref() == name);
        let unset = field.and_then(|field| field.unset.as_ref());
        // Where only one object is there, the other's fields are absent, whatever they are when unset.
        let omits_empty = field.is_some_and(|field| field.omits_empty);
        let old_value = old_value.filter(|value| !(omits_empty && is_empty(value))).or(old.and(unset));
        let new_value = new_value.filter(|value| !(omits_empty && is_empty(value))).or(new.and(unset));
        if old_value.is_none() && new_value.is_none() {
            continue;
        }
        let type_id = field.map(|field| field.type_id).or(map.other).unwrap_or(ApplyTypes::DEDUCED);
        let inner = differences(schema.at(type_id), old_value, new_value);
        if !inner.is_empty() {
            let element = match field {
                Some(field) => PathElement::Field(field.name.clone()),
                None => PathElement::field(name),
            };
            found.take(&element, inner);
        }
    }
}

/// Compares the items of two lists. Whether they are a leaf instead.
fn list(
    schema: ApplySchema<'_>,
    list: &ApplyList,
    old: Option<&Value>,
    new: Option<&Value>,
    found: &mut Found,
) -> bool {
    let items = |value: Option<&'_ Value>| value.and_then(Value::as_array).map_or(0, Vec::len);
    if list.identity == ListIdentity::Atomic || (items(old) == 0 && items(new) == 0) {
        return true;
    }
    if old == new {
        return false;
    }
    let (olds, news) = (by_element(schema, list, old), by_element(schema, list, new));
    let (mut olds, mut news) = (olds.into_iter().peekable(), news.into_iter().peekable());
    loop {
        let order = match (olds.peek(), news.peek()) {
            (None, None) => return false,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((a, _)), Some((b, _))) => a.cmp(b),
        };
        let old = if order.is_le() { olds.next() } else { None };
        let new = if order.is_ge() { news.next() } else { None };
        let element = old.as_ref().or(new.as_ref()).map(|(element, _)| element.clone());
        let Some(element) = element else { return false };
        let (old, new) = (old.map_or(Vec::new(), |(_, all)| all), new.map_or(Vec::new(), |(_, all)| all));
        found.take(&element, item(schema.at(list.item), &old, &new));
    }
}

/// Compares what two lists have under one identity: one item, as a rule.
fn item(schema: ApplySchema<'_>, old: &[&Value], new: &[&Value]) -> Found {
    match (old, new) {
        ([], [one]) => differences(schema, None, Some(one)),
        ([one], []) => differences(schema, Some(one), None),
        ([one], [other]) => differences(schema, Some(one), Some(other)),
        // Items of the same identity are one leaf together.
        (old, new) if old.len() >= 2 && new.len() >= 2 => {
            let mut found = Found::default();
            found.modified.is_member = old != new;
            found
        }
        (old, new) if old.len() >= 2 => {
            let mut found =
                new.first().map_or_else(Found::default, |one| differences(schema, None, Some(one)));
            found.removed.is_member = true;
            found
        }
        (old, _) => {
            let mut found =
                old.first().map_or_else(Found::default, |one| differences(schema, Some(one), None));
            found.added.is_member = true;
            found
        }
    }
}

/// The items of a list by their identity, in the order of identities. Those that have none are left out: nobody can own them.
fn by_element<'v>(
    schema: ApplySchema<'_>,
    list: &ApplyList,
    value: Option<&'v Value>,
) -> Vec<(PathElement, Vec<&'v Value>)> {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    let mut items: Vec<(PathElement, &Value)> =
        items.filter_map(|item| Some((schema.element_of(list, item).ok()?, item))).collect();
    items.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut grouped: Vec<(PathElement, Vec<&Value>)> = Vec::with_capacity(items.len());
    for (element, item) in items {
        match grouped.last_mut() {
            Some((last, all)) if *last == element => all.push(item),
            _ => grouped.push((element, vec![item])),
        }
    }
    grouped
}
