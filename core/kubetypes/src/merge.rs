//! What strategic merge patches ask of the table.

use gantry_apimachinery::{MergeField, MergeSchema};

use crate::{Leaf, Types};

/// Types are named as in [`Types::get`], such as `apps.v1.Deployment`: the name of the type of [`Kind::type_id`](crate::Kind::type_id).
impl MergeSchema for Types {
    fn field(&self, type_name: &str, field: &str) -> Option<MergeField<'_>> {
        let field = Types::field(self, self.get(type_name)?, field)?;
        Some(MergeField {
            type_name: match field.shape.leaf() {
                Leaf::Message(id) => {
                    Some(self.type_of(id)).filter(|of| !of.unwrap).map(|of| of.name.as_str())
                }
                Leaf::Scalar(_) => None,
            },
            merge: field.patch.merge,
            merge_key: field.merge_key,
        })
    }
}

#[cfg(test)]
mod tests {
    use gantry_apimachinery::strategic_merge_patch;
    use serde_json::{Value, json};

    use super::*;

    fn patched(type_name: &str, object: &Value, patch: &Value) -> Value {
        strategic_merge_patch(Types::builtin(), type_name, object, patch).unwrap()
    }

    fn deployment() -> Value {
        json!({"spec": {"replicas": 1, "template": {"spec": {
            "containers": [
                {"name": "a", "image": "a:1", "command": ["x", "y"], "env": [{"name": "E", "value": "1"}, {"name": "F", "value": "2"}]},
                {"name": "b", "image": "b:1"}],
            "volumes": [{"name": "v", "emptyDir": {}}]}}}})
    }

    #[test]
    fn setting_an_image_keeps_the_other_containers() {
        let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "b", "image": "b:2"}]}}}});
        let mut want = deployment();
        want["spec"]["template"]["spec"]["containers"][1]["image"] = "b:2".into();
        assert_eq!(patched("apps.v1.Deployment", &deployment(), &patch), want);
    }

    #[test]
    fn environment_is_merged_by_name_and_commands_are_replaced() {
        let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "command": ["z"],
            "env": [{"name": "F", "$patch": "delete"}, {"name": "E", "value": "3"}]}]}}}});
        let mut want = deployment();
        let container = &mut want["spec"]["template"]["spec"]["containers"][0];
        container["command"] = json!(["z"]);
        container["env"] = json!([{"name": "E", "value": "3"}]);
        assert_eq!(patched("apps.v1.Deployment", &deployment(), &patch), want);
    }

    #[test]
    fn a_volume_changes_its_source_by_retained_keys() {
        let patch = json!({"spec": {"template": {"spec": {"volumes": [
            {"$retainKeys": ["name", "hostPath"], "name": "v", "hostPath": {"path": "/dev"}}]}}}});
        let object = patched("apps.v1.Deployment", &deployment(), &patch);
        assert_eq!(
            object["spec"]["template"]["spec"]["volumes"],
            json!([{"name": "v", "hostPath": {"path": "/dev"}}])
        );
    }

    #[test]
    fn finalizers_are_a_set_and_tolerations_are_replaced() {
        let object = json!({"metadata": {"finalizers": ["a", "b"]}, "spec": {"tolerations": [{"key": "x"}]}});
        let patch = json!({"metadata": {"finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"]},
            "spec": {"tolerations": [{"key": "y"}]}});
        let object = patched("core.v1.Pod", &object, &patch);
        let mut finalizers: Vec<&str> =
            object["metadata"]["finalizers"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        finalizers.sort_unstable();
        assert_eq!(finalizers, ["b", "c"]);
        assert_eq!(object["spec"]["tolerations"], json!([{"key": "y"}]));
    }

    #[test]
    fn a_node_gets_its_conditions_by_type() {
        let object = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Disk", "status": "False"}]}});
        let patch = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        let want = json!([{"type": "Ready", "status": "False"}, {"type": "Disk", "status": "False"}]);
        assert_eq!(patched("core.v1.Node", &object, &patch)["status"]["conditions"], want);
    }
}
