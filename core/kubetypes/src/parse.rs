//! The reader of the table's lines.

use std::collections::HashMap;

use crate::apply::ApplyTable;
use crate::table::{Group, small, type_id};
use crate::{Error, Field, Kind, Leaf, ListType, PatchStrategy, Scalar, Shape, Type, TypeId, Types};

/// A reference to a type that later lines may define: (index of the type, index of the field, name).
type Reference = (usize, usize, String);

#[derive(Default)]
pub(crate) struct Parser {
    groups: Vec<Group>,
    types: Vec<Type>,
    kinds: Vec<(Kind, String)>,
    by_name: HashMap<String, TypeId>,
    references: Vec<Reference>,
}

impl Parser {
    pub(crate) fn table(&mut self, text: &'static str) -> Result<(), Error> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
        for (index, line) in lines {
            let read = if line.starts_with(' ') { self.field(line) } else { self.head(line) };
            read.map_err(|what| Error::Table {
                group: self.groups.last().map_or_else(|| "?".to_owned(), |group| group.prefix.to_owned()),
                line: index + 1,
                what,
                text: line.to_owned(),
            })?;
        }
        Ok(())
    }

    fn head(&mut self, line: &'static str) -> Result<(), &'static str> {
        let mut words = line.split(' ');
        let word = words.next().unwrap_or_default();
        let name = words.next().ok_or("no name")?;
        if word == "group" {
            let (group, version) = name.split_once('/').unwrap_or(("", name));
            let prefix = words.next().ok_or("no prefix")?;
            let openapi = words.next().ok_or("no OpenAPI prefix")?;
            self.groups.push(Group { name: group, version, prefix, openapi });
            return Ok(());
        }
        let group = *self.groups.last().ok_or("no group line before it")?;
        let full = format!("{}.{name}", group.prefix);
        match word {
            "kind" => {
                let resource = match (words.next(), words.next()) {
                    (None, _) => None,
                    (Some(plural), Some("namespaced")) => Some((plural, true)),
                    (Some(plural), Some("cluster")) => Some((plural, false)),
                    _ => return Err("a resource needs its scope: namespaced or cluster"),
                };
                let type_id = type_id(0);
                self.kinds.push((
                    Kind { group: group.name, version: group.version, kind: name, resource, type_id },
                    full,
                ));
            }
            "type" => {
                let mut of = Type {
                    name: full,
                    typed: false,
                    atomic: false,
                    unwrap: false,
                    fields: Vec::new(),
                    description: None,
                    group: small(self.groups.len() - 1),
                    json: Vec::new(),
                };
                for flag in words {
                    match flag {
                        "typed" => of.typed = true,
                        "atomic" => of.atomic = true,
                        "unwrap" => of.unwrap = true,
                        _ => return Err("unknown flag"),
                    }
                }
                if of.typed {
                    of.fields.extend(["apiVersion", "kind"].map(text_field));
                }
                if self.by_name.insert(of.name.clone(), type_id(self.types.len())).is_some() {
                    return Err("the type is defined twice");
                }
                self.types.push(of);
            }
            _ => return Err("a line begins with group, kind, type or two spaces"),
        }
        Ok(())
    }

    fn field(&mut self, line: &'static str) -> Result<(), &'static str> {
        let mut words = line.trim_start().split(' ');
        let number: u32 = words.next().and_then(|word| word.parse().ok()).ok_or("no number")?;
        let name = words.next().ok_or("no name")?;
        let shape = words.next().ok_or("no type")?;
        let mut field = text_field(name);
        field.number = Some(number);
        for word in words {
            match word.split_once('=').unwrap_or((word, "")) {
                ("inline", _) => field.inline = true,
                ("required", _) => {
                    field.required = true;
                    field.always = true;
                }
                ("always", _) => field.always = true,
                ("omitempty", _) => field.always = false,
                ("omitzero", _) => field.omit_zero = true,
                ("atomic", _) => field.atomic = true,
                ("patch", strategy) => {
                    for part in strategy.split(',') {
                        match part {
                            "merge" => field.patch.merge = true,
                            "retainKeys" => field.patch.retain_keys = true,
                            "replace" => {}
                            _ => return Err("unknown patch strategy"),
                        }
                    }
                }
                ("key", key) => field.merge_key = Some(key),
                ("list", "atomic") => field.list_type = ListType::Atomic,
                ("list", "set") => field.list_type = ListType::Set,
                ("map", keys) => field.list_type = ListType::Map(keys.split(',').collect()),
                ("enum", values) => field.enum_values = values.split('|').collect(),
                ("default", value) => field.default = Some(value),
                _ => return Err("unknown property of a field"),
            }
        }
        let (wrap, leaf): (fn(Leaf) -> Shape, _) = if let Some(leaf) = shape.strip_prefix("[]") {
            (Shape::List, leaf)
        } else if let Some(leaf) = shape.strip_prefix("{}") {
            (Shape::Map, leaf)
        } else {
            (Shape::One, shape.strip_prefix('*').unwrap_or(shape))
        };
        field.pointer = shape.starts_with('*');
        let owner = self.types.len().checked_sub(1).ok_or("no type line before it")?;
        field.shape = if let Some(scalar) = Scalar::parse(leaf) {
            wrap(Leaf::Scalar(scalar))
        } else {
            let prefix = self.groups.last().map_or("", |group| group.prefix);
            let full = if leaf.contains('.') { leaf.to_owned() } else { format!("{prefix}.{leaf}") };
            self.references.push((owner, self.types[owner].fields.len(), full));
            wrap(Leaf::Message(type_id(0)))
        };
        self.types[owner].fields.push(field);
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<Types, Error> {
        for (owner, at, name) in self.references {
            let Some(&id) = self.by_name.get(&name) else {
                let of = &self.types[owner];
                return Err(Error::MissingType {
                    from_type: of.name.clone(),
                    field: of.fields[at].name.to_owned(),
                    missing: name,
                });
            };
            let field = &mut self.types[owner].fields[at];
            field.shape = match field.shape {
                Shape::One(_) => Shape::One(Leaf::Message(id)),
                Shape::List(_) => Shape::List(Leaf::Message(id)),
                Shape::Map(_) => Shape::Map(Leaf::Message(id)),
            };
        }
        let mut kinds = Vec::with_capacity(self.kinds.len());
        let mut by_kind = HashMap::with_capacity(self.kinds.len());
        for (mut kind, name) in self.kinds {
            let Some(&id) = self.by_name.get(&name) else {
                return Err(Error::MissingType {
                    from_type: kind.api_version(),
                    field: kind.kind.to_owned(),
                    missing: name,
                });
            };
            kind.type_id = id;
            by_kind.insert((kind.group, kind.version, kind.kind), small(kinds.len()));
            kinds.push(kind);
        }
        Ok(Types {
            groups: self.groups,
            list: self.types,
            kinds,
            by_name: self.by_name,
            by_kind,
            apply: ApplyTable::default(),
        })
    }
}

fn text_field(name: &'static str) -> Field {
    Field {
        number: None,
        name,
        shape: Shape::One(Leaf::Scalar(Scalar::String)),
        pointer: false,
        required: false,
        always: false,
        omit_zero: false,
        inline: false,
        patch: PatchStrategy::default(),
        merge_key: None,
        list_type: ListType::Unset,
        atomic: false,
        enum_values: Vec::new(),
        default: None,
        description: None,
    }
}
