//! What to do about a fault: a table, and what a node's administrator changes in it.

use std::collections::BTreeMap;

use gantry_gpu::{RecoveryAction, is_application_xid};
use gantry_model::FaultKind;
use gantry_nvidia_config::HealthChecks;

/// What a fault means for new work, from nothing to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Response {
    /// The device stays in service; the fault is told and nothing else.
    Ignore,
    /// Out of service until it has been quiet for a while and answers well.
    Suspend,
    /// Out of service until it was reset.
    Reset,
    /// Out of service until the machine was rebooted.
    Reboot,
}

/// Responses and their names in configuration.
const RESPONSES: [(&str, Response); 4] = [
    ("ignore", Response::Ignore),
    ("suspend", Response::Suspend),
    ("reset", Response::Reset),
    ("reboot", Response::Reboot),
];

impl Response {
    /// Its name in configuration: `ignore`, `suspend`, `reset`, `reboot`.
    pub fn as_str(self) -> &'static str {
        RESPONSES.iter().find(|(_, response)| *response == self).map_or("ignore", |(name, _)| name)
    }

    /// What a person has to do.
    pub(crate) fn action(self) -> &'static str {
        match self {
            Self::Ignore => "nothing: it stays in service",
            Self::Suspend => "nothing: it is probed, and returns to service when it has been quiet",
            Self::Reset => "end what runs on it, then reset it (nvidia-smi --gpu-reset)",
            Self::Reboot => "drain the node and reboot it; replace the card if this repeats",
        }
    }
}

/// How much of a card a fault concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All of it, with every partition.
    Card,
    /// The partition in which it happened, where the driver names one.
    Partition,
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    /// The XIDs that it holds for.
    pub(crate) xids: &'static [u32],
    pub(crate) response: Response,
    pub(crate) scope: Scope,
    /// What happened.
    pub(crate) name: &'static str,
    /// Why this response.
    pub(crate) why: &'static str,
}

const fn rule(
    xids: &'static [u32],
    response: Response,
    scope: Scope,
    name: &'static str,
    why: &'static str,
) -> Rule {
    Rule { xids, response, scope, name, why }
}

/// What XIDs mean. Source: NVIDIA's XID catalogue for Ampere and newer (docs.nvidia.com/deploy/xid-errors, 2025-10): its
/// column of immediate actions decides. An XID that is not here is suspended: something was critical to the driver.
pub(crate) const RULES: &[Rule] = &[
    rule(
        &[13, 69],
        Response::Ignore,
        Scope::Partition,
        "graphics engine exception",
        "catalogue: restart the application, whose kernel did something wrong",
    ),
    rule(
        &[31],
        Response::Ignore,
        Scope::Partition,
        "memory page fault",
        "catalogue: restart the application, which used an address that is not its own",
    ),
    rule(
        &[
            8, 11, 25, 32, 39, 40, 41, 60, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 96, 97,
            98, 99, 100, 101, 102, 103, 104, 105, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135, 139,
        ],
        Response::Ignore,
        Scope::Partition,
        "an application's error",
        "catalogue: restart the application; NVIDIA's plugin takes the card out for these for ever",
    ),
    rule(
        &[68],
        Response::Ignore,
        Scope::Partition,
        "video decoder exception",
        "catalogue: restart the application",
    ),
    rule(
        &[37, 38, 43, 44, 66, 67, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161],
        Response::Ignore,
        Scope::Partition,
        "an error that needs nothing",
        "catalogue: ignore; the driver has dealt with it",
    ),
    rule(
        &[45],
        Response::Ignore,
        Scope::Partition,
        "preemptive cleanup",
        "follows another XID, which decides, or the end of a program",
    ),
    rule(
        &[63],
        Response::Ignore,
        Scope::Card,
        "row remapping recorded",
        "catalogue: ignore; whether a reset is due is asked of the driver, which knows",
    ),
    rule(
        &[92],
        Response::Ignore,
        Scope::Card,
        "many corrected memory errors",
        "catalogue: ignore; each was corrected",
    ),
    rule(
        &[154],
        Response::Ignore,
        Scope::Card,
        "recovery action changed",
        "informational; the action itself is asked of the driver and decides",
    ),
    rule(
        &[48],
        Response::Suspend,
        Scope::Card,
        "double-bit ECC error",
        "catalogue: what follows decides (63, 64, 94, 95, or a pending remap), and each has its own row",
    ),
    rule(
        &[94],
        Response::Suspend,
        Scope::Partition,
        "contained memory error",
        "catalogue: restart the application; the error is contained, and the card is fit once it is quiet",
    ),
    rule(
        &[74, 144, 145, 146, 147, 148, 149, 150],
        Response::Suspend,
        Scope::Card,
        "NVLink error",
        "catalogue: depends on counters; links retrain, and where they do not the driver says so",
    ),
    rule(
        &[78, 151, 159],
        Response::Suspend,
        Scope::Card,
        "virtualisation or memory manager error",
        "catalogue: check software; the card itself may be well",
    ),
    rule(&[46], Response::Reset, Scope::Card, "GPU stopped processing", "catalogue: reset the GPU"),
    rule(&[61, 62], Response::Reset, Scope::Card, "micro-controller halt", "catalogue: reset the GPU"),
    rule(
        &[64],
        Response::Reset,
        Scope::Card,
        "row remapping failed",
        "catalogue: reset the GPU; no spare row is left if it repeats",
    ),
    rule(
        &[95],
        Response::Reset,
        Scope::Card,
        "uncontained memory error",
        "catalogue: reset the GPU; every program on it may have wrong data, in all partitions",
    ),
    rule(
        &[109],
        Response::Reset,
        Scope::Card,
        "context switch timeout",
        "catalogue: reset the GPU; NVIDIA's plugin ignores it, and the next program hangs",
    ),
    rule(&[110], Response::Reset, Scope::Card, "security fault", "catalogue: reset the GPU"),
    rule(
        &[119, 120],
        Response::Reset,
        Scope::Card,
        "GSP firmware does not answer",
        "catalogue: reset the GPU; nothing more works on it",
    ),
    rule(
        &[136, 140, 143, 155, 156, 158, 166, 167, 168, 171, 172],
        Response::Reset,
        Scope::Card,
        "unrecovered hardware error",
        "catalogue: reset the GPU",
    ),
    rule(
        &[54],
        Response::Reboot,
        Scope::Card,
        "auxiliary power missing",
        "catalogue: check the cables, with the machine off",
    ),
    rule(
        &[79],
        Response::Reboot,
        Scope::Card,
        "fallen off the bus",
        "catalogue: restart the machine; the card answers nobody",
    ),
];

/// Which table holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HealthProfile {
    /// The catalogue's.
    #[default]
    Gantry,
    /// That of NVIDIA's device plugin: 13, 31, 43, 45, 68 and 109 are ignored, and everything else takes the device out. It
    /// returns all the same.
    Nvidia,
}

/// A text that is no list of responses by XID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{item:?} {rule}: write XID=RESPONSE, as in 109=suspend,48=reset")]
pub struct InvalidOverrides {
    /// The part that breaks the rule, shortened.
    pub item: String,
    /// The rule.
    pub rule: &'static str,
}

/// What each fault means on this node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// The table.
    pub profile: HealthProfile,
    /// What the administrator says instead, by XID.
    pub overrides: BTreeMap<u32, Response>,
    /// Which XIDs are looked at: `DP_DISABLE_HEALTHCHECKS` and `DP_ENABLE_HEALTHCHECKS`.
    pub checks: HealthChecks,
}

impl Policy {
    /// Reads responses by XID: `109=suspend,63=ignore`. An empty text has none.
    ///
    /// # Errors
    /// The first part that breaks a rule.
    pub fn parse_overrides(text: &str) -> Result<BTreeMap<u32, Response>, InvalidOverrides> {
        let mut overrides = BTreeMap::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let refuse = |rule| InvalidOverrides { item: item.chars().take(40).collect(), rule };
            let (xid, name) = item.split_once('=').ok_or_else(|| refuse("has no response"))?;
            let xid = xid.trim().parse().map_err(|_| refuse("does not begin with the number of an XID"))?;
            let response = RESPONSES.iter().find(|(known, _)| *known == name.trim());
            let (_, response) =
                response.ok_or_else(|| refuse("must end with one of ignore, suspend, reset, reboot"))?;
            if overrides.insert(xid, *response).is_some() {
                return Err(refuse("is the second response to its XID"));
            }
        }
        Ok(overrides)
    }

    /// The response to a fault.
    pub fn response(&self, kind: FaultKind) -> Response {
        match kind {
            FaultKind::Xid(xid) => self.xid(xid),
            FaultKind::Lost | FaultKind::RebootRequired => Response::Reboot,
            FaultKind::DoubleBitEcc | FaultKind::RowRemapPending | FaultKind::ResetRequired => {
                Response::Reset
            }
            FaultKind::FabricNotReady => Response::Suspend,
        }
    }

    fn xid(&self, xid: u32) -> Response {
        if let Some(response) = self.overrides.get(&xid) {
            return *response;
        }
        let by_table = match self.profile {
            HealthProfile::Gantry => row(xid).map_or(Response::Suspend, |rule| rule.response),
            HealthProfile::Nvidia if is_application_xid(xid) => Response::Ignore,
            HealthProfile::Nvidia => Response::Suspend,
        };
        if self.checks.ignores(xid, by_table == Response::Ignore) {
            Response::Ignore
        } else {
            // One that is enabled counts, whatever the table says of applications.
            by_table.max(Response::Suspend)
        }
    }

    /// How much of the card a fault concerns. NVIDIA's plugin keeps every XID to the partition that the driver names.
    pub(crate) fn scope(&self, kind: FaultKind) -> Scope {
        match (kind, self.profile) {
            (FaultKind::Xid(_), HealthProfile::Nvidia) => Scope::Partition,
            (FaultKind::Xid(xid), HealthProfile::Gantry) => {
                row(xid).map_or(Scope::Partition, |rule| rule.scope)
            }
            _ => Scope::Card,
        }
    }
}

/// What the driver's own recommendation amounts to.
pub(crate) fn recovery_fault(action: RecoveryAction) -> Option<FaultKind> {
    match action {
        RecoveryAction::None => None,
        RecoveryAction::Reset | RecoveryAction::DrainP2p | RecoveryAction::DrainAndReset => {
            Some(FaultKind::ResetRequired)
        }
        RecoveryAction::Reboot => Some(FaultKind::RebootRequired),
        RecoveryAction::RecoverImexDomain => Some(FaultKind::FabricNotReady),
    }
}

fn row(xid: u32) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.xids.contains(&xid))
}

/// The row of a fault.
pub(crate) fn row_of(kind: FaultKind) -> Option<&'static Rule> {
    match kind {
        FaultKind::Xid(xid) => row(xid),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_xid_has_one_row_with_words_for_it() {
        let mut seen = BTreeSet::new();
        for rule in RULES {
            assert!(!rule.name.is_empty() && !rule.why.is_empty());
            assert!(rule.xids.iter().all(|xid| seen.insert(*xid)), "{:?}", rule.xids);
        }
    }

    #[test]
    fn nvidias_profile_ignores_what_nvidias_plugin_ignores_and_nothing_else() {
        let policy = Policy { profile: HealthProfile::Nvidia, ..Policy::default() };
        let ignored: Vec<u32> =
            (0..300).filter(|xid| policy.response(FaultKind::Xid(*xid)) == Response::Ignore).collect();
        assert_eq!(ignored, [13, 31, 43, 45, 68, 109]);
    }

    #[test]
    fn the_catalogue_decides_where_nvidias_plugin_contradicts_it() {
        let policy = Policy::default();
        for (xid, response) in [
            (69, Response::Ignore),
            (94, Response::Suspend),
            (109, Response::Reset),
            (79, Response::Reboot),
            (9_999, Response::Suspend),
        ] {
            assert_eq!(policy.response(FaultKind::Xid(xid)), response, "XID {xid}");
        }
    }

    #[test]
    fn health_checks_are_disabled_and_enabled_as_nvidias_documentation_says() {
        let xids = |list: &[u32]| list.iter().copied().collect::<BTreeSet<u32>>();
        let checks = HealthChecks { all_disabled: true, enabled: xids(&[79, 13]), ..HealthChecks::default() };
        let all = Policy { checks, ..Policy::default() };
        for profile in [HealthProfile::Gantry, HealthProfile::Nvidia] {
            let policy = Policy { profile, ..all.clone() };
            assert!(policy.response(FaultKind::Xid(79)) >= Response::Suspend, "enabled wins against all");
            assert!(policy.response(FaultKind::Xid(13)) >= Response::Suspend, "and against the table");
            assert_eq!(policy.response(FaultKind::Xid(95)), Response::Ignore);
            assert_eq!(policy.response(FaultKind::Lost), Response::Reboot, "no XID");
        }
        let checks = HealthChecks { all_disabled: false, disabled: xids(&[95, 48]), enabled: xids(&[48]) };
        let some = Policy { checks, ..Policy::default() };
        assert_eq!(some.response(FaultKind::Xid(95)), Response::Ignore);
        assert_eq!(some.response(FaultKind::Xid(48)), Response::Suspend);
        assert_eq!(some.response(FaultKind::Xid(79)), Response::Reboot);
    }

    #[test]
    fn an_administrator_has_the_last_word() {
        let overrides = Policy::parse_overrides(" 109=suspend, 79 = ignore,").unwrap();
        let checks = HealthChecks { all_disabled: true, ..HealthChecks::default() };
        let policy = Policy { overrides, checks, ..Policy::default() };
        assert_eq!(policy.response(FaultKind::Xid(109)), Response::Suspend);
        assert_eq!(policy.response(FaultKind::Xid(79)), Response::Ignore);
        assert_eq!(Policy::parse_overrides(""), Ok(BTreeMap::new()));
        for (text, message) in [
            ("109", "\"109\" has no response: write XID=RESPONSE, as in 109=suspend,48=reset"),
            (
                "x=reset",
                "\"x=reset\" does not begin with the number of an XID: write XID=RESPONSE, as in 109=suspend,48=reset",
            ),
            (
                "1=reset,2=explode",
                "\"2=explode\" must end with one of ignore, suspend, reset, reboot: write XID=RESPONSE, as in \
                 109=suspend,48=reset",
            ),
            (
                "1=reset,1=reset",
                "\"1=reset\" is the second response to its XID: write XID=RESPONSE, as in 109=suspend,48=reset",
            ),
        ] {
            assert_eq!(Policy::parse_overrides(text).unwrap_err().to_string(), message);
        }
    }
}
