//! Sets of fields, as trees that share what they have in common.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use super::PathElement;
use super::schema::ApplySchema;

/// A set of paths to fields. Cheap to clone: parts that did not change are shared.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FieldSet(Option<Arc<[Entry]>>);

/// One step: whether the path that ends here is in the set, and the paths that go on.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) element: PathElement,
    pub(super) is_member: bool,
    pub(super) below: FieldSet,
}

/// The paths of a set, in the order in which conflicts are listed: at each step those that end come first.
pub type Members = Vec<Vec<PathElement>>;

impl FieldSet {
    /// The set without a path.
    pub const EMPTY: Self = Self(None);

    /// A set of one path; the empty set for an empty path, which no set can hold.
    pub fn of_path(path: &[PathElement]) -> Self {
        let Some((last, parents)) = path.split_last() else { return Self::default() };
        let leaf =
            Self::from_sorted(vec![Entry { element: last.clone(), is_member: true, below: Self::default() }]);
        parents.iter().rev().fold(leaf, |below, element| {
            Self::from_sorted(vec![Entry { element: element.clone(), is_member: false, below }])
        })
    }

    /// A set of one dotted path of field names, such as `spec.replicas`.
    pub fn of_fields(path: &str) -> Self {
        let path: Vec<PathElement> =
            path.split('.').filter(|name| !name.is_empty()).map(PathElement::field).collect();
        Self::of_path(&path)
    }

    /// Entries in ascending order of their elements, none of them empty.
    pub(super) fn from_sorted(entries: Vec<Entry>) -> Self {
        debug_assert!(entries.windows(2).all(|pair| pair[0].element < pair[1].element));
        debug_assert!(entries.iter().all(|entry| entry.is_member || !entry.below.is_empty()));
        if entries.is_empty() { Self(None) } else { Self(Some(entries.into())) }
    }

    /// Entries in any order; those of the same element are united.
    pub(super) fn from_entries(mut entries: Vec<Entry>) -> Self {
        entries.sort_by(|a, b| a.element.cmp(&b.element));
        let mut united: Vec<Entry> = Vec::with_capacity(entries.len());
        for entry in entries {
            match united.last_mut() {
                Some(last) if last.element == entry.element => {
                    last.is_member |= entry.is_member;
                    last.below = last.below.union(&entry.below);
                }
                _ => united.push(entry),
            }
        }
        Self::from_sorted(united)
    }

    /// Whether there is no path.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn entries(&self) -> &[Entry] {
        self.0.as_deref().unwrap_or(&[])
    }

    pub(super) fn find(&self, element: &PathElement) -> Option<&Entry> {
        let entries = self.entries();
        entries.binary_search_by(|entry| entry.element.cmp(element)).ok().map(|at| &entries[at])
    }

    /// Whether the path is in the set.
    pub fn contains(&self, path: &[PathElement]) -> bool {
        match path {
            [] => false,
            [last] => self.find(last).is_some_and(|entry| entry.is_member),
            [first, rest @ ..] => self.find(first).is_some_and(|entry| entry.below.contains(rest)),
        }
    }

    fn is(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        }
    }

    /// The paths of either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        if other.is_empty() || self.is(other) {
            return self.clone();
        }
        if self.is_empty() {
            return other.clone();
        }
        self.zip(other, |a, b| match (a, b) {
            (Some(a), Some(b)) => Some(Entry {
                element: a.element.clone(),
                is_member: a.is_member || b.is_member,
                below: a.below.union(&b.below),
            }),
            (one, other) => one.or(other).cloned(),
        })
    }

    /// The paths of both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        if self.is(other) {
            return self.clone();
        }
        if self.is_empty() || other.is_empty() {
            return Self::default();
        }
        self.zip(other, |a, b| {
            let (a, b) = (a?, b?);
            entry(&a.element, a.is_member && b.is_member, a.below.intersection(&b.below))
        })
    }

    /// The paths of the first that are not in the second. What is below a removed path stays.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        if self.is(other) {
            return Self::default();
        }
        if self.is_empty() || other.is_empty() {
            return self.clone();
        }
        self.zip(other, |a, b| {
            let a = a?;
            match b {
                None => Some(a.clone()),
                Some(b) => entry(&a.element, a.is_member && !b.is_member, a.below.difference(&b.below)),
            }
        })
    }

    /// The paths of the first that are neither in the second nor below a path of it.
    #[must_use]
    pub fn recursive_difference(&self, other: &Self) -> Self {
        if self.is_empty() || other.is_empty() {
            return self.clone();
        }
        self.zip(other, |a, b| {
            let a = a?;
            match b {
                None => Some(a.clone()),
                Some(b) if b.is_member => None,
                Some(b) => entry(&a.element, a.is_member, a.below.recursive_difference(&b.below)),
            }
        })
    }

    /// With every named field on the way to a path, so that a field goes with the last of what is in it.
    #[must_use]
    pub(super) fn with_named_fields(&self, schema: Option<ApplySchema<'_>>) -> Self {
        let here = schema.map(|schema| (schema, schema.here()));
        let entries = self.entries().iter().map(|entry| {
            let mut is_member = entry.is_member;
            let mut inner = None;
            if let Some((_, of)) = here {
                match &entry.element {
                    PathElement::Field(name) => {
                        if let Some(map) = &of.map {
                            is_member |= map.field(name).is_some();
                            inner = map.field(name).map(|field| field.type_id).or(map.other);
                        }
                    }
                    PathElement::Key(_) => inner = of.list.as_ref().map(|list| list.item),
                    PathElement::Value(_) | PathElement::Index(_) => {}
                }
            }
            let inner = here.and_then(|(schema, _)| Some(schema.at(inner?)));
            let below = if entry.below.is_empty() {
                FieldSet::default()
            } else {
                entry.below.with_named_fields(inner)
            };
            Entry { element: entry.element.clone(), is_member, below }
        });
        Self::from_sorted(entries.collect())
    }

    /// All paths.
    pub fn members(&self) -> Members {
        let (mut out, mut path) = (Vec::new(), Vec::new());
        self.collect(&mut path, &mut out);
        out
    }

    fn collect(&self, path: &mut Vec<PathElement>, out: &mut Members) {
        for entry in self.entries().iter().filter(|entry| entry.is_member) {
            path.push(entry.element.clone());
            out.push(path.clone());
            path.pop();
        }
        for entry in self.entries().iter().filter(|entry| !entry.below.is_empty()) {
            path.push(entry.element.clone());
            entry.below.collect(path, out);
            path.pop();
        }
    }

    fn zip(&self, other: &Self, merge: impl Fn(Option<&Entry>, Option<&Entry>) -> Option<Entry>) -> Self {
        let (mut a, mut b) = (self.entries().iter().peekable(), other.entries().iter().peekable());
        let mut out = Vec::with_capacity(self.entries().len().max(other.entries().len()));
        loop {
            let order = match (a.peek(), b.peek()) {
                (None, None) => return Self::from_sorted(out),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => a.element.cmp(&b.element),
            };
            let first = if order.is_le() { a.next() } else { None };
            let second = if order.is_ge() { b.next() } else { None };
            out.extend(merge(first, second));
        }
    }
}

/// An entry, unless it would be empty.
pub(super) fn entry(element: &PathElement, is_member: bool, below: FieldSet) -> Option<Entry> {
    (is_member || !below.is_empty()).then(|| Entry { element: element.clone(), is_member, below })
}

impl fmt::Debug for FieldSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(
                self.members().iter().map(|path| path.iter().map(ToString::to_string).collect::<String>()),
            )
            .finish()
    }
}
