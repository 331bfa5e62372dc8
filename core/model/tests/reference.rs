//! The reference page of reasons is what the catalogue says.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use gantry_model::catalogue;

#[test]
fn the_reference_page_is_what_the_catalogue_says() {
    let mut page = String::from(
        "# Reasons\n\n\
         Every refusal and every advice of scheduler and agent has a code that never changes its meaning. The same text stands in the pod's condition, in\n\
         its Events and in `gantry why`. `G1` is about placement, `G2` about the pod as it is written, `G4` is advice.\n\n\
         Made from the catalogue in `core/model`. Do not edit: `BLESS=1 cargo test -p gantry-model`.\n",
    );
    for entry in catalogue() {
        write!(page, "\n## {} {}\n\n{}\n\n{}\n", entry.code, entry.slug, entry.title, entry.action).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reasons.md");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap_or_default() == page,
        "docs/reasons.md is stale: BLESS=1 cargo test -p gantry-model"
    );
}

#[test]
fn no_code_and_no_name_is_given_twice() {
    let (mut codes, mut slugs) = (BTreeSet::new(), BTreeSet::new());
    for entry in catalogue() {
        assert!(codes.insert(entry.code) && slugs.insert(entry.slug), "{entry:?}");
    }
}
