//! `nvidia-smi` over the GPUs that the container sees.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use gantry_model::LinkKind;
use gantry_smi::{Command, Driver, GpuReading, Source};
use jiff::Timestamp;

use super::Process;
use crate::runtime::ContainerView;

impl Source for ContainerView {
    fn driver(&self) -> Driver {
        self.driver()
    }

    fn gpus(&self) -> Vec<GpuReading> {
        self.gpus()
    }

    fn link(&self, a: u32, b: u32) -> Option<LinkKind> {
        self.link(a, b)
    }

    fn now(&self) -> Timestamp {
        self.now()
    }
}

/// Whether these arguments make the tool run until it is killed.
#[cfg(feature = "fuzzing")]
pub(super) fn is_loop(args: &[String]) -> bool {
    Command::parse(args).is_ok_and(|command| command.period().is_some())
}

pub(super) fn main(process: &mut Process) -> BoxFuture<'_, i32> {
    async {
        let command = match Command::parse(process.args()) {
            Ok(command) => command,
            Err(refusal) => {
                process.stdout.write(refusal.text);
                return refusal.code;
            }
        };
        let mut first = true;
        loop {
            let answer = command.run(&*process.view, first);
            process.stdout.write(answer.text);
            let Some(period) = command.period().filter(|_| answer.code == 0) else { return answer.code };
            first = false;
            tokio::time::sleep(period).await;
        }
    }
    .boxed()
}
