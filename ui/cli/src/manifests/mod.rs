//! `gantry manifests`: everything that runs in a cluster, from the chart that is part of the program.
//!
//! ```text
//!   charts/gantry ──compiled in──▶ values ◀── --values, --set, flags
//!                                    └──▶ templates ──▶ YAML (or one List in JSON) ──▶ kubectl apply -f -
//! ```
//!
//! There is one set of templates, which Helm renders too: what is installed is the same either way.

mod chart;
mod template;

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::output;

/// The parts, in the order in which they are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// The custom resource definitions.
    Crds,
    /// The runtime class `nvidia`.
    Runtimeclass,
    /// The node agent.
    Agent,
    /// The scheduler.
    Scheduler,
    /// The controllers of Volcano's Jobs.
    Controllers,
}

const PARTS: [Part; 5] = [Part::Crds, Part::Runtimeclass, Part::Agent, Part::Scheduler, Part::Controllers];

impl Part {
    /// The template that has all of it; the definitions have none.
    const fn template(self) -> Option<&'static str> {
        match self {
            Self::Crds => None,
            Self::Runtimeclass => Some("templates/runtimeclass.yaml"),
            Self::Agent => Some("templates/agent.yaml"),
            Self::Scheduler => Some("templates/scheduler.yaml"),
            Self::Controllers => Some("templates/controllers.yaml"),
        }
    }
}

/// Something that a role lets its account do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Right {
    /// The API group, empty for the core's.
    pub(crate) group: String,
    /// With its subresource, as in `pods/binding`.
    pub(crate) resource: String,
    pub(crate) verb: String,
}

/// What the cluster-wide role of a part grants, in the order of the chart.
pub(crate) fn rights(part: Part) -> anyhow::Result<Vec<Right>> {
    let mut values = chart::defaults()?;
    chart::lay_over(&mut values, &json!({ "controllers": { "enabled": true } }))?;
    let root = chart::root(&values, "gantry", NAMESPACE)?;
    let Some(file) = part.template() else { return Ok(Vec::new()) };
    let words = |rule: &Value, key: &str| -> Vec<String> {
        let list = rule[key].as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect()
    };
    let mut rights = Vec::new();
    for text in split(&chart::templates()?.render(file, &root)?) {
        let object: Value = serde_saphyr::from_str(&text)?;
        if object["kind"] != "ClusterRole" {
            continue;
        }
        for rule in object["rules"].as_array().into_iter().flatten() {
            for group in words(rule, "apiGroups") {
                for resource in words(rule, "resources") {
                    let verbs = words(rule, "verbs").into_iter();
                    rights.extend(verbs.map(|verb| Right {
                        group: group.clone(),
                        resource: resource.clone(),
                        verb,
                    }));
                }
            }
        }
    }
    Ok(rights)
}

/// How to print.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Yaml,
    Json,
}

#[derive(clap::Args)]
pub(crate) struct ManifestsOptions {
    /// Only these parts, separated by commas or repeated. Default: all that the values do not switch off.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// The image of all parts, as REPOSITORY[:TAG].
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Where the driver is installed on the nodes.
    #[arg(long, value_name = "DIR")]
    driver_root: Option<String>,
    /// A ConfigMap of the namespace with configuration files of NVIDIA's device plugin.
    #[arg(long, value_name = "NAME")]
    config_map: Option<String>,
    /// Offer simulated GPUs instead of the driver's, for tries without hardware.
    #[arg(long, value_name = "PROFILE[:COUNT]")]
    simulate: Option<String>,
    /// Leave out the scheduler: pods get the GPUs that the kubelet picks.
    #[arg(long)]
    no_scheduler: bool,
    /// Values of the chart from a YAML file, - for standard input; may be repeated.
    #[arg(short = 'f', long, value_name = "FILE")]
    values: Vec<PathBuf>,
    /// One value of the chart, as in scheduler.replicas=1; may be repeated.
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Print the chart's values with what they mean, and nothing else.
    #[arg(long, exclusive = true)]
    show_values: bool,
    /// How to print.
    #[arg(short, long, default_value = "yaml")]
    output: Output,
}

/// The namespace unless another is given.
const NAMESPACE: &str = "gantry-system";

pub(crate) fn run(namespace: Option<&str>, options: &ManifestsOptions) -> anyhow::Result<()> {
    if options.show_values {
        out!("{}", chart::file("values.yaml"));
        return Ok(());
    }
    let documents = documents(namespace.unwrap_or(NAMESPACE), options)?;
    match options.output {
        Output::Yaml => {
            for (source, text) in &documents {
                outln!("---\n# Source: gantry/{source}\n{}", text.trim());
            }
        }
        Output::Json => {
            let mut items = Vec::new();
            for (source, text) in &documents {
                items.push(
                    serde_saphyr::from_str::<Value>(text).with_context(|| format!("{source}: no YAML"))?,
                );
            }
            output::json(&json!({ "apiVersion": "v1", "kind": "List", "items": items }))?;
        }
    }
    Ok(())
}

/// The objects as text, each with the file that it comes from.
fn documents(namespace: &str, options: &ManifestsOptions) -> anyhow::Result<Vec<(String, String)>> {
    let values = values(options)?;
    let root = chart::root(&values, "gantry", namespace)?;
    let templates = chart::templates()?;
    // Where Volcano runs, its definitions are its own: they are neither overwritten nor, with `kubectl delete`, taken away with all Jobs.
    let is_wanted =
        |path: &str| !path.ends_with(".volcano.sh.yaml") || values["controllers"]["enabled"] == true;
    let mut documents = Vec::new();
    let chosen = |part: &Part| options.only.is_empty() || options.only.contains(part);
    for part in PARTS.iter().filter(|part| chosen(part)) {
        let Some(file) = part.template() else {
            let definitions = chart::FILES.iter().filter(|(path, _)| path.starts_with("crds/"));
            for (path, text) in definitions.filter(|(path, _)| is_wanted(path)) {
                documents.push(((*path).to_owned(), (*text).to_owned()));
            }
            continue;
        };
        let text = templates.render(file, &root).context("render the manifests")?;
        let parts: Vec<String> = split(&text);
        if parts.iter().any(|text| text.contains("namespace: "))
            && !documents.iter().any(|(path, _)| path == "namespace")
        {
            documents.push(("namespace".to_owned(), self::namespace(namespace)?));
        }
        documents.extend(parts.into_iter().map(|text| (file.to_owned(), text)));
    }
    Ok(documents)
}

/// The documents of a file, without those that have nothing but comments.
fn split(text: &str) -> Vec<String> {
    let is_said = |part: &&str| part.lines().any(|line| !line.trim().is_empty() && !line.starts_with('#'));
    format!("\n{text}").split("\n---").filter(is_said).map(|part| part.trim().to_owned()).collect()
}

/// The namespace, which a chart does not have: Helm makes it when asked to. The agent mounts folders of its node, which the stricter pod security
/// standards do not let anybody do.
fn namespace(name: &str) -> anyhow::Result<String> {
    Ok(serde_saphyr::to_string(&json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": { "name": name, "labels": { "pod-security.kubernetes.io/enforce": "privileged" } },
    }))?)
}

/// The chart's values with everything that was given, the flags last.
fn values(options: &ManifestsOptions) -> anyhow::Result<Value> {
    let mut values = chart::defaults()?;
    for path in &options.values {
        let text = if path.as_os_str() == "-" {
            std::io::read_to_string(std::io::stdin()).context("read values from standard input")?
        } else {
            std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?
        };
        let over: Value =
            serde_saphyr::from_str(&text).with_context(|| format!("{}: no YAML", path.display()))?;
        if !over.is_null() {
            chart::lay_over(&mut values, &over).with_context(|| path.display().to_string())?;
        }
    }
    for set in &options.set {
        chart::lay_over(&mut values, &chart::assignment(set)?).with_context(|| format!("--set {set}"))?;
    }
    let mut flags = json!({});
    if let Some(image) = &options.image {
        // A colon before the last slash is that of the registry's port.
        let last = image.rfind('/').map_or(0, |slash| slash + 1);
        let (repository, tag) = match image[last..].find(':') {
            Some(colon) => (&image[..last + colon], &image[last + colon + 1..]),
            None => (image.as_str(), ""),
        };
        flags["image"] = json!({ "repository": repository, "tag": tag });
    }
    for (value, text) in [("nvidiaDriverRoot", &options.driver_root), ("simulate", &options.simulate)] {
        if let Some(text) = text {
            flags[value] = json!(text);
        }
    }
    if let Some(name) = &options.config_map {
        flags["config"] = json!({ "name": name });
    }
    if options.no_scheduler {
        flags["scheduler"] = json!({ "enabled": false });
    }
    // A part that is asked for by name is wanted, whatever its value is.
    for (part, key) in
        [(Part::Agent, "devicePlugin"), (Part::Scheduler, "scheduler"), (Part::Controllers, "controllers")]
    {
        if options.only.contains(&part) {
            flags[key] = json!({ "enabled": true });
        }
    }
    if options.only.contains(&Part::Runtimeclass) {
        flags["runtimeClass"] = json!({ "create": true });
    }
    chart::lay_over(&mut values, &flags)?;
    Ok(values)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn charts() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/gantry")
    }

    #[test]
    fn every_file_of_the_chart_is_in_the_program() {
        let mut found = Vec::new();
        let mut folders = vec![charts()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    found.push(path.strip_prefix(charts()).unwrap().display().to_string());
                }
            }
        }
        // Read by Helm alone.
        found.retain(|path| !matches!(path.as_str(), "values.schema.json" | ".helmignore"));
        found.sort();
        let mut known: Vec<&str> = chart::FILES.iter().map(|(path, _)| *path).collect();
        known.sort_unstable();
        assert_eq!(found, known);
    }

    #[test]
    fn the_schema_is_that_of_the_values() {
        let mut schema = chart::schema(&chart::defaults().unwrap(), "");
        schema["$schema"] = json!("https://json-schema.org/draft-07/schema#");
        let text = format!("{}\n", serde_json::to_string_pretty(&schema).unwrap());
        let path = charts().join("values.schema.json");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        assert!(
            std::fs::read_to_string(&path).is_ok_and(|known| known == text),
            "{} does not fit values.yaml: BLESS=1 cargo test -p gantry-cli the_schema_is",
            path.display()
        );
    }

    #[test]
    fn what_is_set_reaches_the_values_and_what_the_chart_has_not_is_refused() {
        let lay = |over: Value| {
            let mut values = chart::defaults().unwrap();
            chart::lay_over(&mut values, &over).map(|()| values).map_err(|error| error.to_string())
        };
        let set = |text: &str| lay(chart::assignment(text).unwrap());
        assert_eq!(set("scheduler.replicas=1").unwrap()["scheduler"]["replicas"], 1);
        assert_eq!(set("scheduler.names={a,b}").unwrap()["scheduler"]["names"], json!(["a", "b"]));
        assert_eq!(set("nodeSelector.a\\.b/c=x").unwrap()["nodeSelector"], json!({ "a.b/c": "x" }));
        assert_eq!(set("image.tag=1.0").unwrap()["image"]["tag"], "1.0");
        assert_eq!(set("affinity=null").unwrap()["affinity"], Value::Null);
        assert_eq!(set("privileged=false").unwrap()["privileged"], false);
        assert_eq!(
            set("resources.limits.cpu=1").unwrap()["resources"]["limits"],
            json!({ "cpu": 1, "memory": "128Mi" })
        );
        assert_eq!(
            set("scheduler.replica=1").unwrap_err(),
            "value scheduler.replica: the chart has none of this name"
        );
        assert_eq!(
            set("scheduler.replicas=two").unwrap_err(),
            "value scheduler.replicas: invalid value \"two\": must be a number, as in the chart's own 2"
        );
        assert_eq!(
            lay(json!({ "image": "gantry:dev" })).unwrap_err(),
            "value image: invalid value \"gantry:dev\": must be an object, as in the chart's own {\"pullPolicy\":\"IfNotPresent\",\"repository\":\"docker.io/library/gantry\",\"tag\":\"\"}"
        );
        assert_eq!(lay(json!(7)).unwrap_err(), "values: must be an object, as in image: { tag: dev }");
        for (text, expected) in [
            ("replicas", "--set \"replicas\": must be PATH=VALUE, as in image.tag=dev"),
            ("a..b=1", "--set \"a..b=1\": a part of the path is empty"),
        ] {
            assert_eq!(chart::assignment(text).unwrap_err().to_string(), expected);
        }
    }
}
