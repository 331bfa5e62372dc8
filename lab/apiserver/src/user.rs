//! Who makes a request, and the questions that users may ask about themselves.

/// A user as the authenticators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// `system:admin`, `system:serviceaccount:NAMESPACE:NAME`, a certificate's common name …
    pub name: String,
    /// Includes `system:authenticated` for everyone who proved a name.
    pub groups: Vec<String>,
}

impl User {
    /// An authenticated user.
    pub fn new(name: &str, groups: &[&str]) -> Self {
        let mut groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        if !groups.iter().any(|group| group == "system:authenticated") {
            groups.push("system:authenticated".to_owned());
        }
        Self { name: name.to_owned(), groups }
    }

    /// The cluster's administrator, who may do everything.
    pub fn admin() -> Self {
        Self::new("system:admin", &["system:masters"])
    }
}

/// The questions of `authorization.k8s.io` and `authentication.k8s.io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Review {
    SelfSubjectAccess,
    SelfSubjectRules,
    SubjectAccess,
    LocalSubjectAccess,
    SelfSubject,
    Token,
}
