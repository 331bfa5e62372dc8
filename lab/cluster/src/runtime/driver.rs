//! The files of a driver installation, enough for the node agent to find and mount them.

use std::path::Path;

use crate::Error;

/// Makes the files of driver `version` below `root`; those that are there stay.
pub(crate) fn install(root: &Path, version: &str) -> Result<(), Error> {
    gantry_driver::install_simulated(root, version).map_err(Error::file("install a driver in", root))
}
