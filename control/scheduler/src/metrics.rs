//! What the scheduler counts.

use gantry_engine::Refusals;
use gantry_kit::Metrics;
use gantry_model::Reason;

const DECISIONS: &str = "gantry_scheduler_decisions_total";
const REFUSALS: &str = "gantry_scheduler_refusals_total";

/// What became of a pod.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    /// Its binding was written.
    Bound,
    /// No node takes it now.
    Unschedulable,
    /// It was refused as it is written.
    Refused,
    /// Its binding could not be written.
    BindFailed,
}

impl Outcome {
    const ALL: [Self; 4] = [Self::Bound, Self::Unschedulable, Self::Refused, Self::BindFailed];

    const fn label(self) -> &'static str {
        match self {
            Self::Bound => "bound",
            Self::Unschedulable => "unschedulable",
            Self::Refused => "refused",
            Self::BindFailed => "bind-failed",
        }
    }
}

/// Shows every outcome from the start: a counter that appears with its first event has no rate before it.
pub(crate) fn begin(metrics: &Metrics) {
    for outcome in Outcome::ALL {
        decisions(metrics, outcome);
    }
}

fn decisions(metrics: &Metrics, outcome: Outcome) -> gantry_kit::Counter {
    metrics.counter(DECISIONS, "What became of pods, once for each decision.", &[("result", outcome.label())])
}

pub(crate) fn decided(metrics: &Metrics, outcome: Outcome) {
    decisions(metrics, outcome).increment();
}

/// Counts a reason.
pub(crate) fn refused(metrics: &Metrics, reason: &Reason) {
    let entry = reason.entry();
    let help = "Reasons for which pods were refused, each once for each decision.";
    metrics.counter(REFUSALS, help, &[("code", entry.code), ("reason", entry.slug)]).increment();
}

/// Counts a pod that no node takes, and each kind of reason once, however many nodes have it.
pub(crate) fn unschedulable(metrics: &Metrics, refusals: &Refusals) {
    decided(metrics, Outcome::Unschedulable);
    let mut reasons: Vec<&Reason> = refusals.list.iter().map(|refusal| &refusal.reason).collect();
    reasons.dedup_by_key(|reason| reason.entry().code);
    for reason in reasons {
        refused(metrics, reason);
    }
}
