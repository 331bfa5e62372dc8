//! Names of images.

use std::fmt;

use crate::Error;

/// The full name of an image with its tag, as container runtimes keep it.
///
/// Grammar and defaults: <https://github.com/distribution/reference>.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Registry and repository, such as `docker.io/library/gantry`.
    pub name: String,
    /// The tag, such as `latest`.
    pub tag: String,
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.tag)
    }
}

impl std::str::FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = |rule| Err(Error::Reference { text: text.to_owned(), rule });
        if text.contains('@') {
            return refuse("an image that is being made has a tag, not a digest; use NAME:TAG");
        }
        // A colon before the last slash is that of the registry's port.
        let last = text.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match text[last..].find(':') {
            Some(colon) => (&text[..last + colon], &text[last + colon + 1..]),
            None => (text, "latest"),
        };
        let (registry, path) = match name.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => {
                (first, rest.to_owned())
            }
            Some(_) => ("docker.io", name.to_owned()),
            None => ("docker.io", format!("library/{name}")),
        };
        if !is_registry(registry) {
            return refuse("the registry must be a host name with or without a port");
        }
        if !path.split('/').all(is_component) {
            return refuse(
                "each part of the name must be lower-case letters and digits, separated by '.', '_' or '-'",
            );
        }
        let tag_start = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if !tag.bytes().next().is_some_and(tag_start)
            || tag.len() > 128
            || !tag.bytes().all(|byte| tag_start(byte) || byte == b'.' || byte == b'-')
        {
            return refuse(
                "the tag must be up to 128 letters, digits, '_', '.' or '-', and begin with none of the last two",
            );
        }
        let name = format!("{registry}/{path}");
        if name.len() > 255 {
            return refuse("the name must have no more than 255 characters");
        }
        Ok(Self { name, tag: tag.to_owned() })
    }
}

fn is_registry(text: &str) -> bool {
    let (host, port) = text.split_once(':').unwrap_or((text, "0"));
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    host.split('.').all(label) && !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_component(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let (Some(first), Some(last)) = (text.bytes().next(), text.bytes().last()) else { return false };
    if !inner(first) || !inner(last) || !text.bytes().all(|byte| inner(byte) || b"._-".contains(&byte)) {
        return false;
    }
    // Separators: one of `.` and `_`, two of `_`, any number of `-`.
    text.split(|char: char| inner(u8::try_from(char).unwrap_or(0))).all(|separator| {
        matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_docker_hubs() {
        for (text, full) in [
            ("gantry", "docker.io/library/gantry:latest"),
            ("gantry:dev", "docker.io/library/gantry:dev"),
            ("team/gantry:1.0", "docker.io/team/gantry:1.0"),
            ("localhost/gantry", "localhost/gantry:latest"),
            ("localhost:5000/a/b-c__d.e:x_Y", "localhost:5000/a/b-c__d.e:x_Y"),
            ("registry.example/gantry:0.1.0-rc.1", "registry.example/gantry:0.1.0-rc.1"),
        ] {
            assert_eq!(text.parse::<Reference>().unwrap().to_string(), full);
        }
    }

    #[test]
    fn what_is_no_name_is_refused_with_the_rule() {
        let parts =
            "each part of the name must be lower-case letters and digits, separated by '.', '_' or '-'";
        let tag =
            "the tag must be up to 128 letters, digits, '_', '.' or '-', and begin with none of the last two";
        for (text, rule) in [
            ("", parts),
            ("Gantry", parts),
            ("a..b", parts),
            ("a/", parts),
            ("/a", parts),
            ("a b", parts),
            ("-a", parts),
            ("gantry:", tag),
            ("gantry:-a", tag),
            ("a:b:c", tag),
            ("gantry@sha256:00", "an image that is being made has a tag, not a digest; use NAME:TAG"),
            ("-x.y/gantry", "the registry must be a host name with or without a port"),
            ("x.y:/gantry", "the registry must be a host name with or without a port"),
        ] {
            let error = text.parse::<Reference>().unwrap_err().to_string();
            assert_eq!(error, format!("image reference {text:?}: {rule}"));
        }
        let long = format!("a/{}", "b".repeat(300));
        assert!(long.parse::<Reference>().unwrap_err().to_string().ends_with("no more than 255 characters"));
    }
}
