//! Private parsers, with the properties that they keep, for the targets in `fuzz/`.

use std::path::{Path, PathBuf};

use crate::{Engine, Options, plan};

/// What a configuration becomes is reached in one step, and what was added can be taken away; whatever is refused has words.
pub fn configuration(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for engine in [Engine::Containerd, Engine::Crio, Engine::Docker] {
        let main = PathBuf::from("/main");
        let options = Options {
            engine,
            config: Some(main.clone()),
            drop_in: Some(PathBuf::new()),
            dump: None,
            name: "nvidia".to_owned(),
            path: "/usr/bin/gantry-runtime".into(),
            default: true,
            cdi: true,
            remove: false,
        };
        let file =
            |text: Option<String>| move |path: &Path| Ok(text.clone().filter(|_| path == Path::new("/main")));
        let planned = match plan(&options, &file(Some(text.clone().into_owned()))) {
            Ok(planned) => planned,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                continue;
            }
        };
        let Some(change) = planned.changes.first() else { continue };
        assert!(planned.diff().starts_with("--- /main\n"));
        let again = plan(&options, &file(change.after.clone())).expect("what is written can be read");
        assert_eq!(again.changes, [], "a second run changes nothing");
        let remove = Options { remove: true, ..options };
        let removed = plan(&remove, &file(change.after.clone())).expect("what is written can be read");
        let bare = removed.changes.into_iter().next().map_or(change.after.clone(), |change| change.after);
        let again = plan(&remove, &file(bare)).expect("what is written can be read");
        assert_eq!(again.changes, [], "what is gone is gone");
    }
}
