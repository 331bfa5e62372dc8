//! Runs a target: over files, or over its seeds and what resembles them.

use std::fs;
use std::io;

use crate::check;

/// Runs a target over the files in the arguments.
pub fn replay(name: &str) -> io::Result<()> {
    for path in std::env::args_os().skip(1) {
        check(name, &fs::read(path)?);
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tested {
    use std::cell::RefCell;
    use std::panic::{self, AssertUnwindSafe};
    use std::sync::Once;

    use crate::mutate::{Random, mutation};
    use crate::target;

    /// How many random mutations a target is given, besides the systematic ones, unless `GANTRY_FUZZ_MUTATIONS` says another number.
    const MUTATIONS: usize = 10_000;
    /// At so many places of all seeds together a bit is flipped and the rest is cut off.
    const PLACES: usize = 1000;

    thread_local! {
        /// What the panic of an input said, while inputs are tried on this thread.
        static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
    }

    /// Fails with every fault that is found, each with an input as a byte string.
    pub(crate) fn seeds_and_mutations(name: &str) {
        quiet();
        let target = target(name);
        // By place: one fault shows itself in many inputs.
        let mut faults: Vec<(String, String)> = Vec::new();
        let mut try_one = |input: &[u8]| {
            if let Some(said) = failure(target.check, input)
                && faults.iter().all(|(known, _)| known != place(&said))
            {
                let (input, words) = shrunk(target.check, input.to_vec(), said.clone());
                faults.push((place(&said).to_owned(), format!("b\"{}\"\n    {words}", input.escape_ascii())));
            }
        };
        try_one(b"");
        let places = PLACES / target.seeds.len().max(1);
        for seed in target.seeds {
            try_one(seed);
            // Of a long seed, evenly spread places.
            for at in (0..seed.len()).step_by(seed.len().div_ceil(places).max(1)) {
                try_one(&seed[..at]);
                let mut flipped = seed.to_vec();
                flipped[at] ^= 1 << (at % 8);
                try_one(&flipped);
            }
        }
        let mut random = Random(0);
        let wanted = std::env::var("GANTRY_FUZZ_MUTATIONS").ok();
        let mutations =
            wanted.map_or(MUTATIONS, |text| text.parse().expect("GANTRY_FUZZ_MUTATIONS is a number"));
        for _ in 0..mutations {
            try_one(&mutation(target.seeds, &mut random));
        }
        let report: Vec<String> = faults.into_iter().map(|(_, text)| text).collect();
        assert!(report.is_empty(), "{name} fails for\n{}", report.join("\n"));
    }

    /// The place and the words of the panic, if there is one.
    fn failure(check: fn(&[u8]), input: &[u8]) -> Option<String> {
        if std::env::var_os("GANTRY_FUZZ_TRACE").is_some() {
            eprintln!("b\"{}\"", input.escape_ascii());
        }
        SAID.set(Some(String::new()));
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| check(input)));
        let said = SAID.take();
        outcome.is_err().then(|| said.unwrap_or_default())
    }

    /// Where the panic was.
    fn place(said: &str) -> &str {
        said.lines().next().unwrap_or_default()
    }

    /// The input without whatever can be left out of it while it fails at the same place.
    fn shrunk(check: fn(&[u8]), mut input: Vec<u8>, mut said: String) -> (Vec<u8>, String) {
        let mut size = input.len() / 2;
        while size > 0 {
            let mut at = 0;
            while at < input.len() {
                let mut shorter = input.clone();
                shorter.drain(at..(at + size).min(input.len()));
                match failure(check, &shorter).filter(|words| place(words) == place(&said)) {
                    Some(words) => (input, said) = (shorter, words),
                    None => at += size,
                }
            }
            size /= 2;
        }
        (input, said)
    }

    /// Keeps panics of inputs for the report instead of printing each.
    fn quiet() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let usual = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                SAID.with_borrow_mut(|said| match said {
                    Some(said) => *said = info.to_string(),
                    None => usual(info),
                });
            }));
        });
    }
}
