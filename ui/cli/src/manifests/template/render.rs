//! From the tree to text.

use std::collections::BTreeMap;

use serde_json::Value;

use super::parse::{Node, Operand, Parsed, Pipeline, parse};
use super::{Error, functions};

/// A chart's templates.
#[derive(Debug, Default)]
pub(crate) struct Templates {
    files: BTreeMap<String, Vec<Node>>,
    defined: BTreeMap<String, (String, Vec<Node>)>,
}

/// How deep named templates may call one another.
const DEPTH: usize = 32;

struct Scope<'a> {
    templates: &'a Templates,
    file: &'a str,
    root: &'a Value,
    variables: Vec<(String, Value)>,
    depth: usize,
}

impl Templates {
    /// Reads one more file.
    pub(crate) fn add(&mut self, file: &str, text: &str) -> Result<(), Error> {
        let Parsed { body, defined } = parse(file, text)?;
        self.files.insert(file.to_owned(), body);
        self.defined.extend(defined.into_iter().map(|(name, body)| (name, (file.to_owned(), body))));
        Ok(())
    }

    /// One file's text, with `root` as `.` and `$`.
    pub(crate) fn render(&self, file: &str, root: &Value) -> Result<String, Error> {
        let body = self.files.get(file).ok_or_else(|| Error {
            file: file.to_owned(),
            line: 1,
            message: "there is no such template".to_owned(),
        })?;
        let mut scope = Scope { templates: self, file, root, variables: Vec::new(), depth: 0 };
        scope.nodes(body, root)
    }
}

impl Scope<'_> {
    fn error<T>(&self, line: usize, message: impl Into<String>) -> Result<T, Error> {
        Err(Error { file: self.file.to_owned(), line, message: message.into() })
    }

    fn nodes(&mut self, nodes: &[Node], dot: &Value) -> Result<String, Error> {
        let known = self.variables.len();
        let mut out = String::new();
        for node in nodes {
            match node {
                Node::Text(text) => out.push_str(text),
                Node::Print(line, pipeline) => {
                    out.push_str(&functions::printed(&self.pipeline(*line, pipeline, dot)?));
                }
                Node::Set { line, name, new, value } => {
                    let value = self.pipeline(*line, value, dot)?;
                    if *new {
                        self.variables.push((name.clone(), value));
                    } else {
                        let Some((_, old)) = self.variables.iter_mut().rev().find(|(known, _)| known == name)
                        else {
                            return self.error(*line, format!("{name} is not known: make it with :="));
                        };
                        *old = value;
                    }
                }
                Node::If(branches, last) => {
                    let mut chosen = last;
                    for (line, condition, body) in branches {
                        if functions::is_true(&self.pipeline(*line, condition, dot)?) {
                            chosen = body;
                            break;
                        }
                    }
                    out.push_str(&self.nodes(chosen, dot)?);
                }
                Node::With(line, value, body) => {
                    let value = self.pipeline(*line, value, dot)?;
                    if functions::is_true(&value) {
                        out.push_str(&self.nodes(body, &value)?);
                    }
                }
                Node::Range(line, value, body) => match self.pipeline(*line, value, dot)? {
                    Value::Array(list) => {
                        for item in &list {
                            out.push_str(&self.nodes(body, item)?);
                        }
                    }
                    Value::Null => {}
                    other => return self.error(*line, format!("{other} is no list")),
                },
            }
        }
        self.variables.truncate(known);
        Ok(out)
    }

    fn pipeline(&mut self, line: usize, pipeline: &Pipeline, dot: &Value) -> Result<Value, Error> {
        let mut result = None;
        for command in pipeline {
            result = Some(self.command(line, command, result, dot)?);
        }
        Ok(result.unwrap_or_default())
    }

    fn command(
        &mut self,
        line: usize,
        command: &[Operand],
        piped: Option<Value>,
        dot: &Value,
    ) -> Result<Value, Error> {
        let Some((Operand::Name(name), operands)) = command.split_first() else {
            return match (command, piped) {
                ([one], None) => self.operand(line, one, dot),
                _ => self.error(line, "a value takes no arguments"),
            };
        };
        // `and` and `or` leave what they need not know.
        let mut arguments = Vec::new();
        for operand in operands {
            let value = self.operand(line, operand, dot)?;
            let decided = match name.as_str() {
                "and" => !functions::is_true(&value),
                "or" => functions::is_true(&value),
                _ => false,
            };
            arguments.push(value);
            if decided {
                break;
            }
        }
        arguments.extend(piped);
        if name == "include" {
            return self.include(line, &arguments);
        }
        functions::call(name, &arguments).or_else(|message| self.error(line, message))
    }

    fn include(&mut self, line: usize, arguments: &[Value]) -> Result<Value, Error> {
        let [Value::String(name), dot] = arguments else {
            return self.error(line, "include takes the name of a template and its dot");
        };
        let Some((file, body)) = self.templates.defined.get(name) else {
            return self.error(line, format!("no template is named {name:?}"));
        };
        if self.depth == DEPTH {
            return self.error(line, format!("template {name:?} includes itself without end"));
        }
        let mut scope = Scope {
            templates: self.templates,
            file,
            // Within a named template `$` is what it was given.
            root: dot,
            variables: Vec::new(),
            depth: self.depth + 1,
        };
        scope.nodes(body, dot).map(Value::String)
    }

    fn operand(&mut self, line: usize, operand: &Operand, dot: &Value) -> Result<Value, Error> {
        Ok(match operand {
            Operand::Text(text) => Value::String(text.clone()),
            Operand::Number(number) => (*number).into(),
            Operand::Bool(bool) => (*bool).into(),
            Operand::Group(pipeline) => self.pipeline(line, pipeline, dot)?,
            // A function without arguments.
            Operand::Name(name) => functions::call(name, &[]).or_else(|message| self.error(line, message))?,
            Operand::Field(root, fields) => {
                let start = match root.as_deref() {
                    None => dot,
                    Some("$") => self.root,
                    Some(name) => match self.variables.iter().rev().find(|(known, _)| known == name) {
                        Some((_, value)) => value,
                        None => return self.error(line, format!("{name} is not known")),
                    },
                };
                let mut value = start;
                for field in fields {
                    value = match value {
                        Value::Object(map) => map.get(field).unwrap_or(&Value::Null),
                        Value::Null => {
                            return self
                                .error(line, format!("there is nothing that could have a field .{field}"));
                        }
                        other => return self.error(line, format!("{other} has no field .{field}")),
                    };
                }
                value.clone()
            }
        })
    }
}
