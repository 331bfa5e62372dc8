//! The tour of the README is what a reader sees: its commands are run and their output is compared.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::place::{Place, eventually, kubeconfig, say};

/// A line that stands for any number of lines.
const MORE: &str = "…";

/// A command of the tour with the lines below it.
#[derive(Debug)]
struct Step {
    command: String,
    output: Vec<String>,
}

/// The commands in the console blocks of a section.
fn steps(page: &str, section: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut in_console = false;
    let lines = page.lines().skip_while(|line| *line != section).skip(1);
    for line in lines.take_while(|line| !line.starts_with("## ")) {
        match (line, line.strip_prefix("$ ")) {
            ("```console", _) => in_console = true,
            ("```", _) => in_console = false,
            (_, Some(command)) if in_console => {
                steps.push(Step { command: command.to_owned(), output: Vec::new() });
            }
            _ if in_console => {
                if let Some(step) = steps.last_mut() {
                    step.output.push(line.to_owned());
                }
            }
            _ => {}
        }
    }
    steps
}

/// A line without what differs from run to run: ages, ports, UUIDs, suffixes of names, which of two equal nodes, widths of columns.
fn masked(line: &str) -> String {
    // Tabs are the tool's own; blanks are columns, as wide as what is in them.
    let cells = line.split('\t').map(|cell| {
        let words: Vec<String> = cell.split(' ').filter(|word| !word.is_empty()).map(masked_word).collect();
        words.join(" ")
    });
    cells.collect::<Vec<_>>().join("\t")
}

fn masked_word(word: &str) -> String {
    let is_number =
        |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.') && text != ".";
    if let Some(at) = word.find("GPU-").filter(|at| word.len() >= at + 40) {
        return format!("{}GPU-#{}", &word[..at], &word[at + 40..]);
    }
    if let Some((address, port)) = word.rsplit_once(':')
        && address.ends_with("127.0.0.1")
        && is_number(port)
    {
        return format!("{address}:#");
    }
    if word.ends_with("/kubeconfig") {
        return "#/kubeconfig".to_owned();
    }
    // An age, or a number of seconds with a point.
    if word.strip_suffix('s').is_some_and(is_number) || (word.contains('.') && is_number(word)) {
        return "#".to_owned();
    }
    if word == "a100-80-2" {
        return "a100-80-1".to_owned();
    }
    let pieces: Vec<&str> = word.split('-').collect();
    let random = |piece: &str, lengths: std::ops::RangeInclusive<usize>| {
        lengths.contains(&piece.len()) && piece.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    if let [name @ .., hash, suffix] = pieces.as_slice()
        && random(hash, 8..=10)
        && hash.contains(|c: char| c.is_ascii_digit())
        && random(suffix, 5..=5)
    {
        return format!("{}-#", name.join("-"));
    }
    word.to_owned()
}

/// Whether the lines are as written.
fn matches(written: &[String], seen: &str) -> bool {
    fn from(written: &[String], seen: &[String]) -> bool {
        match written {
            [] => seen.is_empty(),
            [more, rest @ ..] if more == MORE => (0..=seen.len()).any(|skip| from(rest, &seen[skip..])),
            [line, rest @ ..] => seen.first() == Some(line) && from(rest, &seen[1..]),
        }
    }
    let written: Vec<String> = written.iter().map(|line| masked(line)).collect();
    let seen: Vec<String> = seen.lines().map(masked).collect();
    from(&written, &seen)
}

fn both(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_tour_is_what_a_reader_sees() {
    if Command::new("kubectl").arg("help").output().is_err() {
        say("skipped: the_tour_is_what_a_reader_sees: no kubectl on PATH");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("README.md")).unwrap();
    let steps = steps(&page, "## Five minutes");
    assert!(steps.len() > 12, "the tour has only {} commands", steps.len());
    let place = Place::new();
    let out = place.path().join("out");
    let printed = || std::fs::read_to_string(&out).unwrap();
    let mut cluster = None;
    let mut config = String::new();
    let programs = Path::new(env!("CARGO_BIN_EXE_gantry")).parent().unwrap().to_owned();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    for Step { command, output: written } in steps {
        if command == "cargo run --release -- up" {
            let mut up = place.command(&["up"]);
            cluster =
                Some(up.stdout(std::fs::File::create(&out).unwrap()).stderr(Stdio::null()).spawn().unwrap());
            let mut seen = String::new();
            eventually(&format!("`{command}` prints what the README says:\n{}", written.join("\n")), || {
                seen = printed();
                matches(&written, &seen)
            });
            config = kubeconfig(&seen);
            continue;
        }
        if command.starts_with("export ") {
            assert!(written.is_empty(), "{command} prints nothing");
            continue;
        }
        let mut seen = String::new();
        let mut run = || {
            let mut shell = Command::new("sh");
            shell.arg("-c").arg(&command).current_dir(&root);
            shell
                .env("PATH", &path)
                .env("KUBECONFIG", &config)
                .env("HOME", place.path())
                .env("XDG_RUNTIME_DIR", place.path());
            seen = both(&shell.output().unwrap());
            matches(&written, &seen)
        };
        let once = command.starts_with("kubectl apply") || command.starts_with("kubectl create");
        // A reader looks a second later.
        let mut patience = if once { 1 } else { 100 };
        while !run() {
            patience -= 1;
            assert!(
                patience > 0,
                "`{command}` prints:\n{seen}\nand the README says:\n{}",
                written.join("\n")
            );
            crate::place::pause();
        }
    }
    let mut cluster = cluster.unwrap();
    assert!(Command::new("kill").arg(cluster.id().to_string()).status().unwrap().success());
    cluster.wait().unwrap();
}

#[test]
fn what_differs_from_run_to_run_is_masked() {
    for (line, expected) in [
        ("a100-80-1   Ready    <none>   12s   v1.33.0+gantry", "a100-80-1 Ready <none> # v1.33.0+gantry"),
        ("  API server  https://127.0.0.1:36931", "API server https://127.0.0.1:#"),
        ("GPU 0: Tesla T4 (UUID: GPU-84dd8761-7969-4af1-9f03-ca66659f8cd9)", "GPU 0: Tesla T4 (UUID: GPU-#)"),
        ("x   default/multi-gpu-app-76cf76df5-4sshh", "x default/multi-gpu-app-#"),
        ("(API after 0.0 s, nodes after 0.2 s)", "(API after # s, nodes after # s)"),
    ] {
        assert_eq!(masked(line), expected);
    }
    let written = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    assert!(matches(&written(&["a", MORE, "d"]), "a\nb\nc\nd\n"));
    assert!(matches(&written(&["a", MORE]), "a\n"));
    assert!(!matches(&written(&["a"]), "a\nb\n"));
}
