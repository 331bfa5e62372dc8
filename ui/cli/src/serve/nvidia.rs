//! The flags of NVIDIA's device plugin and feature discovery, made from the table of their settings. Their values are read where
//! environment and file are read, so that there is one order of importance and one wording of errors.

use std::collections::BTreeMap;

use clap::builder::ArgAction;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use gantry_nvidia_config::{Kind, SETTINGS, Setting, Treatment};

/// What the help calls them.
const HEADING: &str = "Settings of NVIDIA's device plugin and feature discovery (a flag counts more than its environment \
                       variable, and that more than its key in the file)";

/// The flags that were given, by name, as they were written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NvidiaFlags(pub(crate) BTreeMap<String, String>);

impl Args for NvidiaFlags {
    fn augment_args(command: Command) -> Command {
        command.args(SETTINGS.iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for NvidiaFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = SETTINGS.iter().filter_map(|setting| {
            let values: Vec<&str> = matches.get_many::<String>(setting.flag)?.map(String::as_str).collect();
            // Of those that are lists, each time adds to it.
            Some((setting.flag.to_owned(), values.join(",")))
        });
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.extend(Self::from_arg_matches(matches)?.0);
        Ok(())
    }
}

fn argument(setting: &'static Setting) -> Arg {
    let mut argument = Arg::new(setting.flag)
        .long(setting.flag)
        .help(help(setting))
        .help_heading(HEADING)
        .value_name(value_name(setting.kind))
        .action(if setting.is_list() { ArgAction::Append } else { ArgAction::Set });
    for alias in setting.aliases {
        argument = match alias.chars().next() {
            Some(letter) if alias.len() == 1 => argument.visible_short_alias(letter),
            _ => argument.visible_alias(*alias),
        };
    }
    if setting.is_switch() {
        argument = argument.num_args(0..=1).require_equals(true).default_missing_value("true");
    }
    argument
}

fn value_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool => "BOOL",
        Kind::Text => "TEXT",
        Kind::Path => "PATH",
        Kind::Word(_) => "WORD",
        Kind::Words(_) => "WORD,...",
        Kind::Texts => "TEXT,...",
        Kind::Numbers => "NUMBER,...",
        Kind::Duration => "TIME",
    }
}

fn help(setting: &Setting) -> String {
    let words = match setting.kind {
        Kind::Word(words) | Kind::Words(words) => format!(": {}", words.join(", ")),
        _ => String::new(),
    };
    let treatment = match setting.treatment {
        Treatment::Followed | Treatment::AtStart => String::new(),
        Treatment::Unneeded(why) => format!("; changes nothing here: {why}"),
        Treatment::Only(words, _) => format!("; here {} alone", words.join(" and ")),
    };
    let default = match (setting.own_default, setting.default) {
        (None, "") => String::new(),
        (Some(own), "") => format!(" [default: {own}]"),
        (Some(own), nvidias) => format!(" [default: {own}; NVIDIA's: {nvidias}]"),
        (None, default) => format!(" [default: {default}]"),
    };
    let env = setting.env.join(", ");
    let file = setting.path.map(|path| format!(" [file: {path}]")).unwrap_or_default();
    // As the other helps begin.
    let (first, rest) = setting.help.split_at(1);
    format!("{}{rest}{words}{treatment}{default} [env: {env}]{file}", first.to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(arguments: &[&str]) -> Result<NvidiaFlags, clap::Error> {
        let command = NvidiaFlags::augment_args(Command::new("agent").no_binary_name(true));
        NvidiaFlags::from_arg_matches(&command.try_get_matches_from(arguments)?)
    }

    #[test]
    fn every_name_of_every_setting_is_a_flag() {
        for setting in SETTINGS {
            let value = if setting.is_switch() { "true" } else { "x" };
            for name in setting.aliases.iter().chain([&setting.flag]) {
                let flag =
                    if name.len() == 1 { format!("-{name}={value}") } else { format!("--{name}={value}") };
                let flags = given(&[&flag]).unwrap();
                assert_eq!(flags.0, BTreeMap::from([(setting.flag.to_owned(), value.to_owned())]), "{flag}");
            }
        }
    }

    #[test]
    fn flags_are_written_as_for_nvidias_programs() {
        let flags = given(&[
            "--gds-enabled",
            "--mofed-enabled=false",
            "--device-list-strategy=envvar",
            "--device-list-strategy",
            "cdi-cri,cdi-annotations",
            "--kubelet-socket=",
            "-o",
            "/labels",
        ]);
        let expected = [
            ("gds-enabled", "true"),
            ("mofed-enabled", "false"),
            ("device-list-strategy", "envvar,cdi-cri,cdi-annotations"),
            ("kubelet-socket", ""),
            ("output-file", "/labels"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(flags.unwrap().0, BTreeMap::from(expected));
        assert!(given(&["--mig-strategy=none", "--mig-strategy=single"]).is_err(), "one of them is meant");
    }
}
