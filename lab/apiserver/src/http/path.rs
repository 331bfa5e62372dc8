//! Paths, read once.

use super::query::decode;

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestPath {
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/GROUP`
    Group(String),
    /// `/api/v1` or `/apis/GROUP/VERSION`
    GroupVersion(String, String),
    /// Something within a group and version.
    Resource(ResourcePath),
    /// `/version`
    Version,
    /// `/openapi/v2`
    OpenApiV2,
    /// `/openapi/v3`
    OpenApiIndex,
    /// `/openapi/v3/api/v1` or `/openapi/v3/apis/GROUP/VERSION`
    OpenApi(String, String),
    /// `/healthz`, `/livez`, `/readyz` and what is below them.
    Health,
    /// `/`
    Root,
    Unknown,
}

/// The parts of a resource's path; what is absent is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ResourcePath {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: String,
    pub(crate) resource: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
}

impl RequestPath {
    pub(crate) fn parse(path: &str) -> Self {
        let parts: Vec<String> =
            path.split('/').filter(|part| !part.is_empty()).map(|part| decode(part, false)).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts.as_slice() {
            [] => Self::Root,
            ["api"] => Self::CoreVersions,
            ["apis"] => Self::Groups,
            ["apis", group] => Self::Group((*group).to_owned()),
            ["api", version] => Self::GroupVersion(String::new(), (*version).to_owned()),
            ["apis", group, version] => Self::GroupVersion((*group).to_owned(), (*version).to_owned()),
            ["api", version, rest @ ..] => resource("", version, rest),
            ["apis", group, version, rest @ ..] => resource(group, version, rest),
            ["version"] => Self::Version,
            ["openapi", "v2"] => Self::OpenApiV2,
            ["openapi", "v3"] => Self::OpenApiIndex,
            ["openapi", "v3", "api", version] => Self::OpenApi(String::new(), (*version).to_owned()),
            ["openapi", "v3", "apis", group, version] => {
                Self::OpenApi((*group).to_owned(), (*version).to_owned())
            }
            ["healthz" | "livez" | "readyz", ..] => Self::Health,
            _ => Self::Unknown,
        }
    }
}

fn resource(group: &str, version: &str, parts: &[&str]) -> RequestPath {
    let (namespace, parts) = match parts {
        // `namespaces/x` is an object, as are its two subresources; anything else after it is inside it.
        ["namespaces", namespace, rest @ ..]
            if !rest.is_empty() && !matches!(rest, ["status" | "finalize"]) =>
        {
            (*namespace, rest)
        }
        _ => ("", parts),
    };
    let part = |i: usize| parts.get(i).map(|part| (*part).to_owned()).unwrap_or_default();
    if parts.len() > 3 {
        return RequestPath::Unknown;
    }
    RequestPath::Resource(ResourcePath {
        group: group.to_owned(),
        version: version.to_owned(),
        namespace: namespace.to_owned(),
        resource: part(0),
        name: part(1),
        subresource: part(2),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_into_its_parts() {
        let check = |path: &str, expected: [&str; 6]| {
            let RequestPath::Resource(p) = RequestPath::parse(path) else { panic!("{path}") };
            let actual = [p.group, p.version, p.namespace, p.resource, p.name, p.subresource];
            assert_eq!(actual, expected.map(str::to_owned), "{path}");
        };
        check("/api/v1/pods", ["", "v1", "", "pods", "", ""]);
        check("/api/v1/namespaces", ["", "v1", "", "namespaces", "", ""]);
        check("/api/v1/namespaces/x", ["", "v1", "", "namespaces", "x", ""]);
        check("/api/v1/namespaces/x/finalize", ["", "v1", "", "namespaces", "x", "finalize"]);
        check("/api/v1/namespaces/x/pods/y/log", ["", "v1", "x", "pods", "y", "log"]);
        check("/apis/apps/v1/namespaces/x/deployments/", ["apps", "v1", "x", "deployments", "", ""]);
        check("/apis/g.io/v1/things/a%2Fb", ["g.io", "v1", "", "things", "a/b", ""]);
    }

    #[test]
    fn paths_outside_resources_are_told_apart() {
        assert_eq!(RequestPath::parse("/apis/apps"), RequestPath::Group("apps".into()));
        assert_eq!(RequestPath::parse("/readyz/ping"), RequestPath::Health);
        assert_eq!(RequestPath::parse("/swagger.json"), RequestPath::Unknown);
        assert_eq!(RequestPath::parse("/api/v1/a/b/c/d/e"), RequestPath::Unknown);
    }
}
