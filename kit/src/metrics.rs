//! Counters and gauges, and how Prometheus reads them.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The metrics of one process. Cheap to clone; each clone is the same set.
///
/// Text format: <https://prometheus.io/docs/instrumenting/exposition_formats/>, version 0.0.4.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Mutex<Families>>);

type Families = BTreeMap<&'static str, Family>;
type Labels = Vec<(&'static str, String)>;

struct Family {
    kind: &'static str,
    help: &'static str,
    samples: BTreeMap<Labels, Sample>,
}

enum Sample {
    Kept(Arc<AtomicI64>),
    Asked(Box<dyn Fn() -> i64 + Send>),
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.families().keys()).finish()
    }
}

/// A number that only grows, from when the process started.
#[derive(Debug, Clone)]
pub struct Counter(Arc<AtomicI64>);

impl Counter {
    /// Counts one more.
    pub fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A number that goes up and down.
#[derive(Debug, Clone)]
pub struct Gauge(Arc<AtomicI64>);

impl Gauge {
    /// States it.
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

impl Metrics {
    fn families(&self) -> MutexGuard<'_, Families> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(
        &self,
        kind: &'static str,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Arc<AtomicI64> {
        let mut families = self.families();
        let family = families.entry(name).or_insert_with(|| Family { kind, help, samples: BTreeMap::new() });
        let labels = labels.iter().map(|(label, value)| (*label, (*value).to_owned())).collect();
        match family.samples.entry(labels).or_insert_with(|| Sample::Kept(Arc::default())) {
            Sample::Kept(value) => Arc::clone(value),
            // Somebody else answers for this one; what is counted here is shown nowhere.
            Sample::Asked(_) => Arc::default(),
        }
    }

    /// The counter of this name and these labels; the same one each time. The name ends in `_total`.
    pub fn counter(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Counter {
        Counter(self.kept("counter", name, help, labels))
    }

    /// The gauge of this name and these labels; the same one each time.
    pub fn gauge(&self, name: &'static str, help: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        Gauge(self.kept("gauge", name, help, labels))
    }

    /// A number that is asked for when somebody reads the metrics; a later one of the same name and labels replaces it. `kind` is `counter` or `gauge`.
    /// What it calls must not wait, and not use the metrics.
    pub fn ask(
        &self,
        kind: &'static str,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
        value: impl Fn() -> i64 + Send + 'static,
    ) {
        let labels = labels.iter().map(|(label, value)| (*label, (*value).to_owned())).collect();
        self.families()
            .entry(name)
            .or_insert_with(|| Family { kind, help, samples: BTreeMap::new() })
            .samples
            .insert(labels, Sample::Asked(Box::new(value)));
    }

    /// All of them, in the order of their names.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, family) in &*self.families() {
            let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", family.kind);
            for (labels, sample) in &family.samples {
                let value = match sample {
                    Sample::Kept(value) => value.load(Ordering::Relaxed),
                    Sample::Asked(ask) => ask(),
                };
                let labels: Vec<String> =
                    labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
                let braces =
                    if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
                let _ = writeln!(text, "{name}{braces} {value}");
            }
        }
        text
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_that_of_prometheus_in_a_fixed_order() {
        let metrics = Metrics::default();
        let bound = metrics.counter("gantry_b_total", "Bound\npods.", &[("result", "bound")]);
        bound.increment();
        metrics.clone().counter("gantry_b_total", "Bound\npods.", &[("result", "bound")]).increment();
        metrics.counter("gantry_b_total", "Bound\npods.", &[("result", "a\"\\\n")]);
        metrics.gauge("gantry_a", "Now.", &[]).set(-3);
        metrics.ask("gauge", "gantry_c", "Asked.", &[], || 1);
        metrics.ask("gauge", "gantry_c", "Asked.", &[], || 7);
        assert_eq!(
            metrics.text(),
            "# HELP gantry_a Now.\n# TYPE gantry_a gauge\ngantry_a -3\n\
             # HELP gantry_b_total Bound\\npods.\n# TYPE gantry_b_total counter\n\
             gantry_b_total{result=\"a\\\"\\\\\\n\"} 0\ngantry_b_total{result=\"bound\"} 2\n\
             # HELP gantry_c Asked.\n# TYPE gantry_c gauge\ngantry_c 7\n"
        );
    }
}
