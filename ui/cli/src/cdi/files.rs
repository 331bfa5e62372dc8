//! `gantry cdi list` and `gantry cdi validate`.

use std::path::{Path, PathBuf};

use anyhow::bail;
use gantry_cdi::{Cache, specification_files};
use serde_json::{Value, json};

use super::{FOLDERS, List, Output, Validate};
use crate::output;

/// Lists devices with their files. What is wrong with files is told, and is no failure: it may be anybody's.
pub(crate) fn list(options: &List) -> anyhow::Result<()> {
    let cache = Cache::load(&options.folders.folders);
    let errors: Vec<String> = cache.errors().iter().map(ToString::to_string).collect();
    match options.output {
        Output::Json => {
            let devices =
                cache.entries().map(|(name, file)| json!({ "name": name.to_string(), "file": file }));
            let conflicts = cache
                .conflicts()
                .map(|conflict| json!({ "name": conflict.name.to_string(), "files": conflict.files }));
            let document = json!({
                "devices": devices.collect::<Vec<Value>>(),
                "conflicts": conflicts.collect::<Vec<Value>>(),
                "errors": errors,
            });
            return output::json(&document);
        }
        Output::Name => cache.devices().for_each(|name| outln!("{name}")),
        Output::Table => {
            let mut rows: Vec<Vec<String>> = cache
                .entries()
                .map(|(name, file)| vec![name.to_string(), "ok".to_owned(), file.display().to_string()])
                .collect();
            rows.extend(cache.conflicts().map(|conflict| {
                let [a, b] = conflict.files.each_ref().map(|file| file.display().to_string());
                vec![conflict.name.to_string(), "conflict".to_owned(), format!("{a}, {b}")]
            }));
            rows.sort();
            if !rows.is_empty() {
                let headers = ["DEVICE", "STATE", "FILE"];
                output::table((!options.no_headers).then_some(&headers[..]), &rows);
            }
        }
    }
    for error in &errors {
        eprintln!("warning: left out: {error}");
    }
    if cache.conflicts().next().is_some() {
        eprintln!(
            "warning: runtimes refuse devices that two files of one folder describe: remove one of them"
        );
    }
    if cache.devices().next().is_none() && errors.is_empty() && cache.conflicts().next().is_none() {
        eprintln!("no CDI devices found\nhint: gantry cdi generate --output /var/run/cdi/nvidia.yaml");
    }
    Ok(())
}

/// Checks files as a runtime does.
pub(crate) fn validate(options: &Validate) -> anyhow::Result<()> {
    let usual: Vec<PathBuf> = FOLDERS.iter().map(PathBuf::from).collect();
    let paths = if options.paths.is_empty() { &usual } else { &options.paths };
    let mut unreadable = Vec::new();
    let mut files: Vec<PathBuf> = Vec::new();
    for path in paths {
        if path.is_dir() {
            files.extend(specification_files(path, &mut unreadable));
        } else if path.exists() || !options.paths.is_empty() {
            files.push(path.clone());
        }
    }
    let results: Vec<(&Path, Result<String, String>)> =
        files.iter().map(|file| (file.as_path(), check(file))).collect();
    let failed = results.iter().filter(|(_, result)| result.is_err()).count() + unreadable.len();
    match options.output {
        Output::Json => {
            let of = |(file, result): &(&Path, Result<String, String>)| match result {
                Ok(kind) => json!({ "file": file, "valid": true, "kind": kind }),
                Err(error) => json!({ "file": file, "valid": false, "error": error }),
            };
            output::json(&results.iter().map(of).collect::<Vec<_>>())?;
        }
        Output::Name => {
            for (file, _) in results.iter().filter(|(_, result)| result.is_err()) {
                outln!("{}", file.display());
            }
        }
        Output::Table => {
            for (file, result) in &results {
                match result {
                    Ok(kind) => outln!("{}: valid, kind {kind}", file.display()),
                    Err(error) => outln!("{error}"),
                }
            }
        }
    }
    for error in &unreadable {
        eprintln!("error: {error}");
    }
    if results.is_empty() && failed == 0 {
        eprintln!("no specification files found");
    }
    if failed > 0 {
        bail!("{failed} of {} files are not valid", results.len().max(failed));
    }
    Ok(())
}

/// The kind of a file, or what is wrong with it; the text names the file.
fn check(file: &Path) -> Result<String, String> {
    gantry_cdi::read(file).map(|spec| spec.kind).map_err(|error| error.to_string())
}
