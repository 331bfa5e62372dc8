//! What a container gets from elsewhere: ConfigMaps, Secrets and the pod's own fields, as environment and as files.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVar, Pod, Secret};
use kube::{Api, Client};
use serde_json::Value;

/// The objects that a pod refers to; those that do not exist are absent.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    config_maps: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    secrets: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
}

/// Facts of the node that a pod may ask for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeFacts<'a> {
    pub(crate) name: &'a str,
    pub(crate) host_ip: &'a str,
    pub(crate) pod_ip: &'a str,
}

/// What is missing, as the kubelet says it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Missing {
    #[error("{kind} \"{name}\" not found")]
    Object { kind: &'static str, name: String },
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    Key { kind: &'static str, name: String, namespace: String, key: String },
}

/// A container's files by path, and its directories.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    pub(crate) directories: BTreeSet<String>,
}

impl Sources {
    /// Reads the ConfigMaps and Secrets that the pod names; none for most pods.
    pub(crate) async fn fetch(client: &Client, pod: &Pod) -> Result<Self, kube::Error> {
        let (mut config_maps, mut secrets) = (BTreeSet::new(), BTreeSet::new());
        let Some(spec) = &pod.spec else { return Ok(Self::default()) };
        for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
            for from in container.env_from.iter().flatten() {
                config_maps.extend(from.config_map_ref.iter().map(|source| source.name.clone()));
                secrets.extend(from.secret_ref.iter().map(|source| source.name.clone()));
            }
            for source in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
                config_maps.extend(source.config_map_key_ref.iter().map(|key| key.name.clone()));
                secrets.extend(source.secret_key_ref.iter().map(|key| key.name.clone()));
            }
        }
        for volume in spec.volumes.iter().flatten() {
            config_maps.extend(volume.config_map.iter().map(|source| source.name.clone()));
            secrets.extend(volume.secret.iter().filter_map(|source| source.secret_name.clone()));
            for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
                config_maps.extend(source.config_map.iter().map(|source| source.name.clone()));
                secrets.extend(source.secret.iter().map(|source| source.name.clone()));
            }
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let mut sources = Self::default();
        for name in config_maps {
            if let Some(found) =
                Api::<ConfigMap>::namespaced(client.clone(), namespace).get_opt(&name).await?
            {
                let mut data: BTreeMap<String, Vec<u8>> = BTreeMap::new();
                data.extend(found.data.into_iter().flatten().map(|(key, text)| (key, text.into_bytes())));
                data.extend(found.binary_data.into_iter().flatten().map(|(key, bytes)| (key, bytes.0)));
                sources.config_maps.insert(name, data);
            }
        }
        for name in secrets {
            if let Some(found) = Api::<Secret>::namespaced(client.clone(), namespace).get_opt(&name).await? {
                let data = found.data.into_iter().flatten().map(|(key, bytes)| (key, bytes.0)).collect();
                sources.secrets.insert(name, data);
            }
        }
        Ok(sources)
    }

    fn get(
        &self,
        kind: &'static str,
        name: &str,
        optional: Option<bool>,
    ) -> Result<Option<&BTreeMap<String, Vec<u8>>>, Missing> {
        let known = if kind == "configmap" { &self.config_maps } else { &self.secrets };
        match known.get(name) {
            Some(data) => Ok(Some(data)),
            None if optional == Some(true) => Ok(None),
            None => Err(Missing::Object { kind, name: name.to_owned() }),
        }
    }

    /// A container's environment, in order, with `$(NAME)` replaced.
    pub(crate) fn env(
        &self,
        pod: &Pod,
        container: &Container,
        node: NodeFacts<'_>,
    ) -> Result<Vec<(String, String)>, Missing> {
        // Where every client library looks for the API server.
        let mut env: Vec<(String, String)> = [
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
            ("KUBERNETES_SERVICE_PORT", "443"),
            ("KUBERNETES_SERVICE_PORT_HTTPS", "443"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        for from in container.env_from.iter().flatten() {
            let prefix = from.prefix.as_deref().unwrap_or_default();
            let data = if let Some(source) = &from.config_map_ref {
                self.get("configmap", &source.name, source.optional)?
            } else if let Some(source) = &from.secret_ref {
                self.get("secret", &source.name, source.optional)?
            } else {
                None
            };
            for (key, value) in data.into_iter().flatten() {
                env.push((format!("{prefix}{key}"), text(value)));
            }
        }
        for variable in container.env.iter().flatten() {
            if let Some(value) = self.variable(pod, container, variable, node, &env)? {
                env.push((variable.name.clone(), value));
            }
        }
        Ok(env)
    }

    fn variable(
        &self,
        pod: &Pod,
        container: &Container,
        variable: &EnvVar,
        node: NodeFacts<'_>,
        before: &[(String, String)],
    ) -> Result<Option<String>, Missing> {
        let Some(source) = &variable.value_from else {
            return Ok(Some(substitute(variable.value.as_deref().unwrap_or_default(), before)));
        };
        let from = |kind: &'static str, name: &str, key: &str, optional: Option<bool>| {
            let Some(data) = self.get(kind, name, optional)? else { return Ok(None) };
            match data.get(key) {
                Some(value) => Ok(Some(String::from_utf8_lossy(value).into_owned())),
                None if optional == Some(true) => Ok(None),
                None => Err(Missing::Key {
                    kind,
                    name: name.to_owned(),
                    namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                    key: key.to_owned(),
                }),
            }
        };
        if let Some(key) = &source.config_map_key_ref {
            return from("configmap", &key.name, &key.key, key.optional);
        }
        if let Some(key) = &source.secret_key_ref {
            return from("secret", &key.name, &key.key, key.optional);
        }
        if let Some(field) = &source.field_ref {
            return Ok(Some(field_value(pod, &field.field_path, node)));
        }
        if let Some(field) = &source.resource_field_ref {
            return Ok(Some(resource_value(container, &field.resource)));
        }
        Ok(None)
    }

    /// A container's files from volumes with known content.
    pub(crate) fn files(
        &self,
        pod: &Pod,
        container: &Container,
        node: NodeFacts<'_>,
    ) -> Result<Files, Missing> {
        let mut result = Files::default();
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let account = "/var/run/secrets/kubernetes.io/serviceaccount";
        result.directories.insert(account.to_owned());
        result.files.insert(format!("{account}/namespace"), namespace.into_bytes());
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        for mount in container.volume_mounts.iter().flatten() {
            let Some(volume) = volumes.iter().find(|volume| volume.name == mount.name) else { continue };
            let mut content: BTreeMap<String, Vec<u8>> = BTreeMap::new();
            let items = |data: Option<&BTreeMap<String, Vec<u8>>>,
                         items: &Option<Vec<k8s_openapi::api::core::v1::KeyToPath>>| {
                let data = data.cloned().unwrap_or_default();
                match items {
                    None => data,
                    Some(items) => items
                        .iter()
                        .filter_map(|item| Some((item.path.clone(), data.get(&item.key)?.clone())))
                        .collect(),
                }
            };
            if let Some(source) = &volume.config_map {
                content.extend(items(self.get("configmap", &source.name, source.optional)?, &source.items));
            }
            if let Some(source) = &volume.secret {
                let name = source.secret_name.as_deref().unwrap_or_default();
                content.extend(items(self.get("secret", name, source.optional)?, &source.items));
            }
            for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
                if let Some(source) = &source.config_map {
                    content
                        .extend(items(self.get("configmap", &source.name, source.optional)?, &source.items));
                }
                if let Some(source) = &source.secret {
                    content.extend(items(self.get("secret", &source.name, source.optional)?, &source.items));
                }
            }
            for item in volume.downward_api.iter().flat_map(|source| source.items.iter().flatten()) {
                if let Some(field) = &item.field_ref {
                    content.insert(item.path.clone(), field_value(pod, &field.field_path, node).into_bytes());
                }
            }
            let base = mount.mount_path.trim_end_matches('/');
            if let Some(path) = mount.sub_path.as_deref().filter(|path| !path.is_empty()) {
                match content.remove(path) {
                    Some(bytes) => {
                        result.files.insert(base.to_owned(), bytes);
                    }
                    None => {
                        result.directories.insert(base.to_owned());
                    }
                }
            } else {
                result.directories.insert(base.to_owned());
                result
                    .files
                    .extend(content.into_iter().map(|(path, bytes)| (format!("{base}/{path}"), bytes)));
            }
        }
        Ok(result)
    }
}

/// The value of a `fieldRef`.
fn field_value(pod: &Pod, path: &str, node: NodeFacts<'_>) -> String {
    let keyed = |map: Option<&BTreeMap<String, String>>, prefix: &str| {
        path.strip_prefix(prefix)
            .and_then(|rest| rest.strip_suffix("']"))
            .and_then(|key| map?.get(key).cloned())
            .unwrap_or_default()
    };
    match path {
        "spec.nodeName" => node.name.to_owned(),
        "status.hostIP" | "status.hostIPs" => node.host_ip.to_owned(),
        "status.podIP" | "status.podIPs" => node.pod_ip.to_owned(),
        "metadata.labels" => lines(pod.metadata.labels.as_ref()),
        "metadata.annotations" => lines(pod.metadata.annotations.as_ref()),
        path if path.starts_with("metadata.labels['") => {
            keyed(pod.metadata.labels.as_ref(), "metadata.labels['")
        }
        path if path.starts_with("metadata.annotations['") => {
            keyed(pod.metadata.annotations.as_ref(), "metadata.annotations['")
        }
        path => {
            let value = serde_json::to_value(pod).unwrap_or_default();
            value
                .pointer(&format!("/{}", path.replace('.', "/")))
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        }
    }
}

fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> =
        map.into_iter().flatten().map(|(key, value)| format!("{key}={value:?}")).collect();
    lines.join("\n")
}

/// The value of a `resourceFieldRef` with divisor 1.
fn resource_value(container: &Container, resource: &str) -> String {
    let (list, name) = resource.split_once('.').unwrap_or(("limits", resource));
    let resources = container.resources.as_ref();
    let map = resources.and_then(|resources| {
        if list == "requests" { resources.requests.as_ref() } else { resources.limits.as_ref() }
    });
    map.and_then(|map| map.get(name))
        .and_then(|quantity| quantity.0.parse::<gantry_units::Quantity>().ok())
        .map_or_else(|| "0".to_owned(), |quantity| quantity.value().to_string())
}

/// Replaces `$(NAME)` by what is set before; `$$` is a dollar sign; what is not set stays as it is.
pub(crate) fn substitute(text: &str, env: &[(String, String)]) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        result.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            result.push('$');
            rest = tail;
            continue;
        }
        let name = after.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        if let Some((name, tail)) = name {
            match env.iter().rev().find(|(known, _)| known == name) {
                Some((_, value)) => result.push_str(value),
                None => result.extend(["$(", name, ")"]),
            }
            rest = tail;
        } else {
            result.push('$');
            rest = after;
        }
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn variables_are_replaced_as_kubernetes_does() {
        let env = [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "2".to_owned())];
        for (text, expected) in
            [("$(A)-$(B)", "1-2"), ("$$(A)", "$(A)"), ("$(C)", "$(C)"), ("$A $", "$A $"), ("$(A", "$(A")]
        {
            assert_eq!(substitute(text, &env), expected);
        }
    }

    #[test]
    fn environment_and_files_come_from_their_sources() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "labels": {"app": "x"}},
            "spec": {
                "volumes": [{"name": "c", "configMap": {"name": "cm", "items": [{"key": "k", "path": "sub/k"}]}}],
                "containers": [{
                    "name": "a",
                    "env": [
                        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                        {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                        {"name": "K", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}},
                        {"name": "ALL", "value": "$(NODE)/$(K)"},
                    ],
                    "volumeMounts": [{"name": "c", "mountPath": "/etc/c/"}],
                }],
            },
        }))
        .unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let node = NodeFacts { name: "n1", host_ip: "1.2.3.4", pod_ip: "5.6.7.8" };
        let empty = Sources::default();
        assert_eq!(empty.env(&pod, container, node).unwrap_err().to_string(), "configmap \"cm\" not found");
        let data = BTreeMap::from([("k".to_owned(), b"v".to_vec())]);
        let sources =
            Sources { config_maps: BTreeMap::from([("cm".to_owned(), data)]), ..Sources::default() };
        let env = sources.env(&pod, container, node).unwrap();
        let values: Vec<&str> = env.iter().skip(3).map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, ["n1", "p", "x", "v", "n1/v"]);
        let files = sources.files(&pod, container, node).unwrap();
        assert_eq!(files.files["/etc/c/sub/k"], b"v");
        assert!(files.directories.contains("/etc/c"));
    }
}
