//! Targets of `ui/cli`, a program: its parser is included by path.

use crate::input::text;

#[path = "../../ui/cli/src/up/nodes.rs"]
#[expect(dead_code, reason = "the program uses the rest")]
mod nodes;

/// The value of `--nodes`: what is accepted is written as a value that says the same.
pub(crate) fn nodes_flag(data: &[u8]) {
    match text(data).parse::<nodes::NodesFlag>() {
        Ok(flag) => {
            within_bounds(&flag.0);
            assert_eq!(flag.to_string().parse().as_ref(), Ok(&flag));
        }
        Err(error) => assert!(!error.is_empty()),
    }
}

/// A cluster file: nodes within the same bounds as the flag's, or words.
pub(crate) fn nodes_file(data: &[u8]) {
    match nodes::from_text(&text(data)) {
        Ok(groups) => within_bounds(&groups),
        Err(error) => assert!(!format!("{error:#}").is_empty()),
    }
}

fn within_bounds(groups: &[nodes::Group]) {
    let total: u64 = groups.iter().map(|group| u64::from(group.count)).sum();
    assert!((1..=20_000).contains(&total) && groups.iter().all(|group| group.gpus <= 16));
    for taint in groups.iter().flat_map(|group| &group.taints) {
        assert!(["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&taint.to_api().effect.as_str()));
    }
}
