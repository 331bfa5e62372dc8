//! What a plugin is asked.

use gantry_proto::nri::{Container, ContainerAdjustment, Event, PodSandbox};

/// What a plugin wants to be told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Events(i32);

impl Events {
    /// These events. Each costs the runtime a call whenever it happens.
    pub fn of(events: &[Event]) -> Self {
        Self(events.iter().fold(0, |mask, event| match *event as i32 {
            number @ 1..=31 => mask | 1 << (number - 1),
            _ => mask,
        }))
    }

    /// Bit n − 1 stands for the event with number n.
    pub(crate) fn mask(self) -> i32 {
        self.0
    }
}

/// Answers the runtime. Each answer is waited for by whoever creates a container on the node: it comes from memory.
pub trait Plugin: Send + Sync + 'static {
    /// What to be told of. An empty set means everything, as runtimes read it.
    fn events(&self) -> Events;

    /// The pods and containers that exist, told at the beginning of each connection. Containers that have ended are not among them;
    /// pods that have, may be.
    fn synchronize(&self, pods: Vec<PodSandbox>, containers: Vec<Container>);

    /// Says what to change of a container that is about to be created.
    ///
    /// # Errors
    /// Words for people: the container is not created, and the kubelet shows them and tries again later.
    fn create_container(&self, pod: PodSandbox, container: Container) -> Result<ContainerAdjustment, String>;

    /// A container is being stopped, or its creation has failed.
    fn stop_container(&self, _pod: PodSandbox, _container: Container) {}

    /// A container is removed.
    fn remove_container(&self, _pod: PodSandbox, _container: Container) {}

    /// A pod is being stopped: its containers have ended.
    fn stop_pod(&self, _pod: PodSandbox) {}

    /// A pod is removed.
    fn remove_pod(&self, _pod: PodSandbox) {}

    /// The runtime is about to end.
    fn shutdown(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_stands_for_each_event() {
        let events = Events::of(&[Event::StopPodSandbox, Event::CreateContainer, Event::RemoveContainer]);
        assert_eq!(events.mask(), 0b100_0000_1010);
        assert_eq!(Events::of(&[Event::Unknown]).mask(), 0);
    }
}
