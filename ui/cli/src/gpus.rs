//! `gantry get gpus` and `gantry describe gpu`.

use gantry_view::{GpuView, OwnerView, Snapshot};

use crate::args::{Connection, DescribeOptions, Format, GetOptions};
use crate::{connect, output};

/// Lists GPUs.
pub(crate) async fn get(connection: &Connection, options: &GetOptions) -> anyhow::Result<()> {
    let client = connect::client(connection).await?;
    let mut gpus = Snapshot::load(&client).await?.gpus();
    if let Some(filter) = &options.filter {
        gpus.retain(|gpu| {
            let fields = [&gpu.id, &gpu.node, &gpu.product];
            fields.iter().any(|field| field.contains(filter))
                || owners(&gpu.pods).iter().any(|owner| owner.contains(filter))
        });
    }
    match options.output {
        Format::Json => return output::json(&gpus),
        Format::Yaml => return output::yaml(&gpus),
        Format::Name => {
            for gpu in &gpus {
                outln!("gpu/{}", gpu.id);
            }
            return Ok(());
        }
        Format::Table | Format::Wide => {}
    }
    if gpus.is_empty() {
        eprintln!("no GPUs found\nhint: kubectl get gpunodes");
        return Ok(());
    }
    let wide = options.output == Format::Wide;
    let mut headers = vec!["NODE", "GPU", "MODEL", "MEMORY", "HEALTH", "POD"];
    if wide {
        headers.extend(["UUID", "PCI", "NUMA", "DRIVER"]);
    }
    let rows: Vec<Vec<String>> = gpus.iter().map(|gpu| row(gpu, wide)).collect();
    output::table((!options.no_headers).then_some(&headers), &rows);
    Ok(())
}

fn row(gpu: &GpuView, wide: bool) -> Vec<String> {
    let mut row = vec![
        gpu.node.clone(),
        gpu.index.to_string(),
        gpu.product.clone(),
        format!("{} MiB", gpu.memory_mib),
        if gpu.healthy { "Healthy".to_owned() } else { "Unhealthy".to_owned() },
        if gpu.pods.is_empty() { "<none>".to_owned() } else { owners(&gpu.pods).join(",") },
    ];
    if wide {
        row.extend([
            gpu.id.clone(),
            gpu.pci_bus_id.clone(),
            gpu.numa_node.map_or_else(|| "<unknown>".to_owned(), |node| node.to_string()),
            gpu.driver_version.clone(),
        ]);
    }
    row
}

/// Pods by namespace and name; a pod whose init containers use the GPU as well counts once.
fn owners(pods: &[OwnerView]) -> Vec<String> {
    let mut names: Vec<String> = pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
    names.dedup();
    names
}

/// Shows one GPU.
pub(crate) async fn describe(connection: &Connection, options: &DescribeOptions) -> anyhow::Result<()> {
    let client = connect::client(connection).await?;
    // As `get gpus -o name` prints it. A node could be named gpu, but no index begins like a UUID.
    let name =
        options.gpu.strip_prefix("gpu/").filter(|rest| rest.starts_with("GPU-")).unwrap_or(&options.gpu);
    let gpu = Snapshot::load(&client).await?.gpu(name)?;
    match options.output {
        Format::Json => return output::json(&gpu),
        Format::Yaml => return output::yaml(&gpu),
        Format::Name => {
            outln!("gpu/{}", gpu.id);
            return Ok(());
        }
        Format::Table | Format::Wide => {}
    }
    let line = |name: &str, value: &str| outln!("{:<21}{value}", format!("{name}:"));
    line("UUID", &gpu.id);
    line("Node", &gpu.node);
    line("Index", &gpu.index.to_string());
    line("Model", &gpu.product);
    line("Memory", &format!("{} MiB", gpu.memory_mib));
    line("Compute capability", &gpu.compute_capability);
    line("PCI address", &gpu.pci_bus_id);
    line("NUMA node", &gpu.numa_node.map_or_else(|| "<unknown>".to_owned(), |node| node.to_string()));
    line("Driver", &gpu.driver_version);
    line("Health", if gpu.healthy { "Healthy" } else { "Unhealthy" });
    if let Some(fault) = &gpu.fault {
        line("Fault", fault);
    }
    let links: Vec<String> = gpu.links.iter().map(|(other, kind)| format!("{other}={kind}")).collect();
    line("Links", &if links.is_empty() { "<none>".to_owned() } else { links.join(" ") });
    if gpu.pods.is_empty() {
        line("Pods", "<none>");
    } else {
        outln!("Pods:");
        for pod in &gpu.pods {
            outln!("  {}/{} (container {})", pod.namespace, pod.name, pod.container);
        }
    }
    Ok(())
}
