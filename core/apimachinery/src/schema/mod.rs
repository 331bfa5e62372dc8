//! Structural schemas: what a CustomResourceDefinition says of its objects, compiled once, then used to complete, prune and check them.
//!
//! ```text
//!   openAPIV3Schema ──compile──▶ Schema ──┬─ default(object)    fields that are missing get their default
//!                      │                  ├─ prune(object)      fields that nobody specified go, and are named
//!                      └ FieldErrors      └─ validate(new, old) types, limits, lists as sets and maps, then the CEL rules
//! ```
//!
//! An API server does these in this order on every write. Rules and words are those of `k8s.io/apiextensions-apiserver`.

mod apply;
mod change;
mod compile;
mod formats;
mod nesting;
mod node;
mod rules;
mod validate;

use serde_json::Value;

use self::node::Node;
use self::rules::Rules;
use crate::{ApplySchema, ApplyTypeId, ApplyTypes, FieldError, FieldPath};

/// The compiled schema of one version of a custom resource. Cheap to share behind an `Arc`.
#[derive(Debug)]
pub struct Schema {
    root: Node,
    rules: Option<Rules>,
    apply: (ApplyTypes, ApplyTypeId),
}

impl Schema {
    /// Compiles an `openAPIV3Schema`; `path` is where it stands in the definition. All faults are told at once.
    pub fn compile(schema: &Value, path: &FieldPath) -> Result<Self, Vec<FieldError>> {
        let root = compile::root(schema, path)?;
        let rules = Rules::compile(schema, path)?;
        let apply = apply::types(&root);
        Ok(Self { root, rules, apply })
    }

    /// What server-side apply must know of the objects.
    pub fn apply(&self) -> ApplySchema<'_> {
        ApplySchema { types: &self.apply.0, root: self.apply.1 }
    }

    /// Gives each missing field its default, inside the objects that are there. A null where null is not allowed counts as missing.
    pub fn default(&self, object: &mut Value) {
        change::default(&self.root, object);
    }

    /// Removes the fields that the schema does not specify, and gives their paths (`spec.typo`, `spec.items[0].typo`): a strict
    /// client is told of them. `apiVersion`, `kind` and `metadata` of the object and of embedded ones stay.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        change::prune(&self.root, object)
    }

    /// Checks an object that is to replace `old`, or to be created. Every fault is told, in the order of the fields; rules in CEL are
    /// checked only when the object has the types, sizes and fields that they may rely on.
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = validate::validate(&self.root, object, &FieldPath::root());
        if let Some(rules) = &self.rules {
            errors.extend(rules.validate(object, old, &errors));
        }
        errors
    }
}

#[cfg(test)]
mod tests;
