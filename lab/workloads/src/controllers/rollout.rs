//! The arithmetic of a Deployment's rollout: how many pods each of its ReplicaSets should have.

use std::sync::Arc;

use serde_json::Value;

use crate::json::{Fields as _, int_or_percent};

/// The Deployment's count when a ReplicaSet was last scaled.
pub(crate) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
/// The most pods that the Deployment might have had then.
pub(crate) const MAX: &str = "deployment.kubernetes.io/max-replicas";
/// The number of a rollout.
pub(crate) const REVISION: &str = "deployment.kubernetes.io/revision";

/// A ReplicaSet while its Deployment is planned.
#[derive(Debug, Clone)]
pub(crate) struct Set {
    pub(crate) object: Arc<Value>,
    /// The pods it should have, as planned so far.
    pub(crate) replicas: i64,
}

impl Set {
    pub(crate) fn new(object: Arc<Value>) -> Self {
        let replicas = object.int("/spec/replicas").unwrap_or(1);
        Self { object, replicas }
    }

    /// The pods it should have according to the API server.
    pub(crate) fn stored(&self) -> i64 {
        self.object.int("/spec/replicas").unwrap_or(1)
    }

    /// The pods it has.
    pub(crate) fn current(&self) -> i64 {
        self.object.int("/status/replicas").unwrap_or(0)
    }

    pub(crate) fn ready(&self) -> i64 {
        self.object.int("/status/readyReplicas").unwrap_or(0)
    }

    pub(crate) fn available(&self) -> i64 {
        self.object.int("/status/availableReplicas").unwrap_or(0)
    }

    pub(crate) fn number(&self, annotation: &str) -> Option<i64> {
        self.object.annotation(annotation)?.parse().ok()
    }

    pub(crate) fn revision(&self) -> i64 {
        self.number(REVISION).unwrap_or(0)
    }
}

/// How many pods a Deployment asks for, and how they may be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Strategy {
    pub(crate) replicas: i64,
    pub(crate) rolling: bool,
    /// Pods above `replicas` during a rolling update.
    pub(crate) max_surge: i64,
    /// Pods that may be missing during a rolling update.
    pub(crate) max_unavailable: i64,
}

impl Strategy {
    pub(crate) fn of(deployment: &Value) -> Self {
        let replicas = deployment.int("/spec/replicas").unwrap_or(1);
        let rolling = deployment.text("/spec/strategy/type") != "Recreate";
        let bound = |field: &str, round_up| {
            let value = deployment.at(&format!("/spec/strategy/rollingUpdate/{field}"));
            let default = Value::from("25%");
            let value = if value.is_null() { &default } else { value };
            int_or_percent(value, replicas, round_up).unwrap_or(0).max(0)
        };
        if !rolling {
            return Self { replicas, rolling, max_surge: 0, max_unavailable: 0 };
        }
        let (max_surge, mut max_unavailable) = (bound("maxSurge", true), bound("maxUnavailable", false));
        if max_surge == 0 && max_unavailable == 0 {
            // Percentages of few pods can both round to nothing, and then nothing could ever move.
            max_unavailable = 1;
        }
        Self { replicas, rolling, max_surge, max_unavailable: max_unavailable.min(replicas) }
    }

    /// The pods of a new ReplicaSet that has `own` pods now, where all have `total`.
    pub(crate) fn new_replicas(&self, own: i64, total: i64) -> i64 {
        if !self.rolling {
            return self.replicas;
        }
        let room = self.replicas + self.max_surge - total;
        if room <= 0 { own } else { own + room.min(self.replicas - own) }
    }
}

/// One step of a rolling update: grow the new set, or else shrink the old ones.
pub(crate) fn roll(strategy: &Strategy, new: &mut Set, old: &mut [Set]) {
    let old_total: i64 = old.iter().map(|set| set.replicas).sum();
    let before = new.replicas;
    new.replicas = if new.replicas > strategy.replicas {
        strategy.replicas
    } else {
        strategy.new_replicas(new.replicas, new.replicas + old_total)
    };
    if new.replicas != before || old_total == 0 {
        return;
    }
    old.sort_by_key(|set| (set.object.created(), set.object.name().to_owned()));
    let min_available = strategy.replicas - strategy.max_unavailable;
    let new_unavailable = new.replicas - new.available();
    let mut may_go = (new.replicas + old_total - min_available - new_unavailable).max(0);
    if may_go == 0 {
        return;
    }
    // Pods of old sets that are not available serve nobody: they go first.
    for set in old.iter_mut() {
        let unhealthy = (set.replicas - set.available()).clamp(0, may_go);
        set.replicas -= unhealthy;
        may_go -= unhealthy;
    }
    let available: i64 = new.available() + old.iter().map(Set::available).sum::<i64>();
    let mut surplus = (available - min_available).max(0);
    for set in old.iter_mut() {
        let goes = set.replicas.min(surplus);
        set.replicas -= goes;
        surplus -= goes;
    }
}

/// Scales while no rollout moves: the one active set alone, a finished one entirely, several in proportion.
pub(crate) fn scale(strategy: &Strategy, deployment: &Value, mut new: Option<&mut Set>, old: &mut [Set]) {
    let active_old = old.iter().filter(|set| set.replicas > 0).count();
    let new_active = new.as_ref().is_some_and(|set| set.replicas > 0);
    let alone = match (active_old, new_active) {
        (0, _) => new.as_deref_mut().or_else(|| old.iter_mut().max_by_key(|set| set.object.created())),
        (1, false) => old.iter_mut().find(|set| set.replicas > 0),
        _ => None,
    };
    if let Some(set) = alone {
        set.replicas = strategy.replicas;
        return;
    }
    let saturated = new.as_ref().is_some_and(|set| {
        set.replicas == strategy.replicas
            && set.number(DESIRED) == Some(strategy.replicas)
            && set.available() == strategy.replicas
    });
    if saturated {
        for set in old.iter_mut() {
            set.replicas = 0;
        }
        return;
    }
    if !strategy.rolling {
        return;
    }
    let mut sets: Vec<&mut Set> = old.iter_mut().chain(new).filter(|set| set.replicas > 0).collect();
    let total: i64 = sets.iter().map(|set| set.replicas).sum();
    let allowed = if strategy.replicas > 0 { strategy.replicas + strategy.max_surge } else { 0 };
    let to_add = allowed - total;
    // Large sets carry the most, and among equals the newest grows and the oldest shrinks.
    sets.sort_by_key(|set| {
        let age = set.object.created().as_second();
        (std::cmp::Reverse(set.replicas), if to_add > 0 { -age } else { age })
    });
    let mut added = 0;
    for set in &mut sets {
        if to_add == 0 {
            continue;
        }
        let open = to_add - added;
        let share = fraction(strategy, deployment, set);
        let share = if to_add > 0 { share.min(open) } else { share.max(open) };
        set.replicas += share;
        added += share;
    }
    if let Some(first) = sets.first_mut() {
        first.replicas = (first.replicas + to_add - added).max(0);
    }
}

/// By how much a set changes in proportion to the Deployment's change of size.
fn fraction(strategy: &Strategy, deployment: &Value, set: &Set) -> i64 {
    if strategy.replicas == 0 {
        return -set.replicas;
    }
    let before = set.number(MAX).filter(|max| *max > 0);
    let before = before.or_else(|| deployment.int("/status/replicas")).unwrap_or(0);
    if before == 0 {
        return 0;
    }
    let product = set.replicas * (strategy.replicas + strategy.max_surge);
    (product * 2 + before).div_euclid(before * 2) - set.replicas
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(name: &str, replicas: i64, available: i64) -> Set {
        Set::new(Arc::new(json!({
            "metadata": {"name": name, "annotations": {DESIRED: "10", MAX: "13"}},
            "spec": {"replicas": replicas},
            "status": {"replicas": replicas, "availableReplicas": available},
        })))
    }

    fn strategy(replicas: i64, surge: Value, unavailable: Value) -> Strategy {
        Strategy::of(&json!({"spec": {"replicas": replicas, "strategy": {
            "type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
        }}}))
    }

    #[test]
    fn surge_rounds_up_unavailable_down_and_one_of_them_lets_it_move() {
        for (replicas, surge, unavailable, expect) in [
            (10, json!("25%"), json!("25%"), (3, 2)),
            (3, json!(1), json!(0), (1, 0)),
            (3, json!(0), json!("25%"), (0, 1)),
            (4, Value::Null, Value::Null, (1, 1)),
            (1, json!(0), json!(5), (0, 1)),
        ] {
            let strategy = strategy(replicas, surge, unavailable);
            assert_eq!((strategy.max_surge, strategy.max_unavailable), expect);
        }
    }

    #[test]
    fn a_rolling_update_goes_step_by_step_within_its_bounds() {
        let strategy = strategy(10, json!("30%"), json!("20%"));
        // (new: replicas, available; old: replicas, available) -> (new, old)
        for (new, old, expect) in [
            ((0, 0), (10, 10), (3, 10)),
            ((3, 0), (10, 10), (3, 8)),
            ((3, 0), (8, 8), (5, 8)),
            ((5, 3), (8, 8), (5, 5)),
            ((8, 5), (5, 5), (8, 3)),
            ((10, 10), (3, 3), (10, 0)),
            ((10, 10), (0, 0), (10, 0)),
            ((5, 4), (8, 4), (5, 4)),
        ] {
            let (mut new, mut old) = (set("new", new.0, new.1), [set("old", old.0, old.1)]);
            roll(&strategy, &mut new, &mut old);
            assert_eq!((new.replicas, old[0].replicas), expect);
        }
    }

    #[test]
    fn a_rollout_never_leaves_its_bounds_and_always_ends() {
        for replicas in 1..12 {
            for surge in 0..4 {
                for unavailable in 0..4 {
                    let strategy = strategy(replicas, json!(surge), json!(unavailable));
                    let (mut new, mut old) = (set("new", 0, 0), set("old", replicas, replicas));
                    for _ in 0..100 {
                        let mut olds = [old.clone()];
                        roll(&strategy, &mut new, &mut olds);
                        let total = new.replicas + olds[0].replicas;
                        assert!(total <= replicas + strategy.max_surge, "{total} pods for {strategy:?}");
                        let available = new.available().min(new.replicas) + olds[0].replicas;
                        assert!(
                            available >= replicas - strategy.max_unavailable,
                            "{available} for {strategy:?}"
                        );
                        // Then all pods that were asked for become available.
                        new = set("new", new.replicas, new.replicas);
                        old = set("old", olds[0].replicas, olds[0].replicas);
                    }
                    assert_eq!((new.replicas, old.replicas), (replicas, 0), "{strategy:?}");
                }
            }
        }
    }

    #[test]
    fn scaling_amid_a_rollout_is_proportional() {
        let strategy = strategy(20, json!(3), json!(2));
        let mut new = set("new", 5, 3);
        let mut old = [set("old", 8, 8)];
        scale(&strategy, &json!({}), Some(&mut new), &mut old);
        assert_eq!((new.replicas, old[0].replicas), (9, 14), "23 pods, split as 5 to 8");
    }

    #[test]
    fn scaling_a_finished_rollout_touches_only_the_new_set() {
        let strategy = strategy(4, json!(1), json!(1));
        let mut new = set("new", 10, 10);
        let mut old = [set("old", 0, 0)];
        scale(&strategy, &json!({}), Some(&mut new), &mut old);
        assert_eq!((new.replicas, old[0].replicas), (4, 0));
    }
}
