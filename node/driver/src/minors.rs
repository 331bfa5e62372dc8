//! The device numbers of MIG instances, which the kernel module lists in `/proc/driver/nvidia-caps/mig-minors`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::Error;
use crate::error::short;

/// Which `/dev/nvidia-caps/nvidia-cap<N>` opens which instance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MigMinors {
    /// By name, such as `gpu0/gi1/ci0/access`.
    minors: BTreeMap<String, u32>,
    /// Whether the driver's own numbering fills in what is not listed.
    assumed: bool,
}

impl MigMinors {
    /// Those that the kernel lists; none where it lists none, because no GPU of the machine can be partitioned.
    ///
    /// # Errors
    /// [`Error::MigMinors`] for a line that cannot be read.
    pub fn of_kernel(proc: &Path) -> Result<Self, Error> {
        let path = proc.join("driver/nvidia-caps/mig-minors");
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(Error::Io { action: "read", path, source }),
        }
    }

    /// Those of the file's text: a name and a number on each line.
    ///
    /// # Errors
    /// [`Error::MigMinors`] for a line that cannot be read.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut minors = BTreeMap::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let mut words = line.split_whitespace();
            let pair = match (words.next(), words.next().map(str::parse), words.next()) {
                (Some(name), Some(Ok(minor)), None) => (name.to_owned(), minor),
                _ => return Err(Error::MigMinors { line: index + 1, text: short(line) }),
            };
            minors.insert(pair.0, pair.1);
        }
        Ok(Self { minors, assumed: false })
    }

    /// Those that NVIDIA's driver has everywhere: 15 GPU instances on each GPU with 8 compute instances each, from 3 on. For machines
    /// that are simulated.
    pub fn assumed() -> Self {
        Self { minors: BTreeMap::new(), assumed: true }
    }

    /// The minor that opens a GPU instance of the card `/dev/nvidia<gpu>`.
    pub fn gpu_instance(&self, gpu: u32, instance: u32) -> Option<u32> {
        let usual = (instance < 15).then(|| 3 + gpu * 135 + instance * 9);
        self.minors.get(&format!("gpu{gpu}/gi{instance}/access")).copied().or(usual.filter(|_| self.assumed))
    }

    /// The minor that opens a compute instance.
    pub fn compute_instance(&self, gpu: u32, instance: u32, compute: u32) -> Option<u32> {
        let listed = self.minors.get(&format!("gpu{gpu}/gi{instance}/ci{compute}/access")).copied();
        let usual = (instance < 15 && compute < 8).then(|| 3 + gpu * 135 + instance * 9 + 1 + compute);
        listed.or(usual.filter(|_| self.assumed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minors_are_read_by_name() {
        let minors = MigMinors::parse(
            "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\n\ngpu0/gi7/access 66\ngpu0/gi7/ci1/access 68\ngpu1/gi0/access 138\n",
        )
        .unwrap();
        assert_eq!((minors.gpu_instance(0, 7), minors.compute_instance(0, 7, 1)), (Some(66), Some(68)));
        assert_eq!((minors.gpu_instance(1, 0), minors.gpu_instance(1, 1)), (Some(138), None));
        let usual = MigMinors::assumed();
        for (gpu, instance) in [(0, 0), (0, 7), (1, 0)] {
            assert_eq!(usual.gpu_instance(gpu, instance), minors.gpu_instance(gpu, instance));
        }
        assert_eq!(usual.compute_instance(0, 7, 1), Some(68));
        assert_eq!((usual.gpu_instance(0, 15), usual.compute_instance(0, 0, 8)), (None, None));
    }

    #[test]
    fn a_line_of_another_form_is_named() {
        for bad in ["gpu0/gi0/access", "gpu0/gi0/access x", "gpu0/gi0/access -3", "a 1 2", "a 4294967296"] {
            assert_eq!(
                MigMinors::parse(&format!("config 1\n{bad}\n")).unwrap_err().to_string(),
                format!("mig-minors, line 2: {bad:?} is not `NAME MINOR`, as in gpu0/gi1/ci0/access 13")
            );
        }
    }
}
