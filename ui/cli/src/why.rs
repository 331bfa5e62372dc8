//! `gantry why`: where a pod stands, and what would help.

use gantry_view::{ReasonView, Snapshot, Why};

use crate::args::{Connection, Format, WhyOptions};
use crate::{connect, hint, output};

/// Explains one pod.
pub(crate) async fn run(connection: &Connection, options: &WhyOptions) -> anyhow::Result<()> {
    let name = pod_name(&options.pod)?;
    let client = connect::client(connection).await?;
    let namespace = client.default_namespace().to_owned();
    let why = Snapshot::load(&client).await?.why(&namespace, name)?;
    match options.output {
        Format::Json => output::json(&why),
        Format::Yaml => output::yaml(&why),
        Format::Name => {
            outln!("pod/{name}");
            Ok(())
        }
        Format::Table | Format::Wide => {
            print(&why);
            Ok(())
        }
    }
}

/// The pod's name from `NAME`, `pod/NAME` or `pod NAME`.
fn pod_name(words: &[String]) -> anyhow::Result<&str> {
    let is_pod = |kind: &str| matches!(kind, "pod" | "pods" | "po");
    match words {
        [word] => match word.split_once('/') {
            None => Ok(word),
            Some((kind, name)) if is_pod(kind) => Ok(name),
            Some((kind, name)) => Err(only_pods(&format!("{kind}/{name}"))),
        },
        [kind, name] if is_pod(kind) => Ok(name),
        [kind, ..] => Err(only_pods(kind)),
        [] => Err(hint::error("no pod is named", "gantry why pod/NAME")),
    }
}

fn only_pods(what: &str) -> anyhow::Error {
    hint::error(format!("{what}: only pods can be explained"), "gantry why pod/NAME")
}

fn print(why: &Why) {
    outln!("pod {} {}", why.pod, why.verdict);
    for (container, gpus) in &why.gpus {
        outln!("  container {container}: {}", gpus.join(", "));
    }
    why.reasons.iter().for_each(reason);
    if let Some(nearest) = &why.nearest {
        outln!("  nearest: {nearest}");
    }
    if why.ahead > 0 {
        let more = if why.ahead > why.first_ahead.len() { ", …" } else { "" };
        outln!("  ahead: {} waiting pods ({}{more})", why.ahead, why.first_ahead.join(", "));
    }
    why.advice.iter().for_each(reason);
}

fn reason(reason: &ReasonView) {
    let nodes = match reason.nodes {
        0 => String::new(),
        1 => "1 node: ".to_owned(),
        count => format!("{count} nodes: "),
    };
    outln!("  {} {}: {nodes}{}", reason.code, reason.slug, reason.message);
    // An advice says at its end what to do.
    if !reason.message.ends_with(reason.action) {
        outln!("    {}", reason.action);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_named_as_in_kubectl() {
        let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        for list in [&["a"][..], &["pod/a"], &["po/a"], &["pod", "a"]] {
            assert_eq!(pod_name(&words(list)).ok(), Some("a"), "{list:?}");
        }
        for list in [&["deployment/a"][..], &["job", "a"]] {
            assert!(pod_name(&words(list)).is_err(), "{list:?}");
        }
    }
}
