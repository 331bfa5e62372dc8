//! `matchConditions`: CEL expressions that all must hold for a webhook to be asked.

use kube_cel::KubeCelExt;
use kube_cel::cel::{Context, Program, Value as CelValue, to_value};
use serde_json::Value;

use crate::json::{items, text};

/// Evaluates the conditions over the review's request. `Err` tells which condition failed and why.
pub(super) fn all_hold(webhook: &Value, request: &Value) -> Result<bool, String> {
    let conditions = items(&webhook["matchConditions"]);
    if conditions.is_empty() {
        return Ok(true);
    }
    let mut context = Context::default().with_all();
    for (name, value) in
        [("object", &request["object"]), ("oldObject", &request["oldObject"]), ("request", request)]
    {
        context.add_variable_from_value(name, to_value(value).map_err(|e| e.to_string())?);
    }
    let mut errors = Vec::new();
    for condition in conditions {
        let result = Program::compile(text(&condition["expression"]))
            .map_err(|e| e.to_string())
            .and_then(|program| program.execute(&context).map_err(|e| e.to_string()));
        match result {
            Ok(CelValue::Bool(true)) => {}
            // One that does not hold settles it, whatever the others are.
            Ok(CelValue::Bool(false)) => return Ok(false),
            Ok(_) => errors.push(format!("match condition {:?} is not a bool", text(&condition["name"]))),
            Err(why) => errors.push(format!("match condition {:?}: {why}", text(&condition["name"]))),
        }
    }
    if errors.is_empty() { Ok(true) } else { Err(errors.join("; ")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_conditions_must_hold_and_one_that_does_not_settles_it() {
        let request = json!({"object": {"metadata": {"name": "p"}, "spec": {"n": 2}}, "operation": "CREATE"});
        let holds = |expressions: &[&str]| {
            let conditions: Vec<Value> =
                expressions.iter().map(|e| json!({"name": "c", "expression": e})).collect();
            all_hold(&json!({"matchConditions": conditions}), &request)
        };
        assert_eq!(holds(&[]), Ok(true));
        assert_eq!(holds(&["object.metadata.name == 'p'", "request.operation == 'CREATE'"]), Ok(true));
        assert_eq!(holds(&["object.spec.n > 1", "oldObject == null"]), Ok(true));
        assert_eq!(holds(&["object.absent.x == 1", "object.spec.n > 2"]), Ok(false));
        assert!(holds(&["object.absent.x == 1"]).is_err());
        assert!(holds(&["1 +"]).is_err());
        assert!(holds(&["1"]).is_err());
    }
}
