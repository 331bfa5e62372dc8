//! Query strings.

/// The decoded parameters of a request, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(name, true), decode(value, true))
                })
                .collect(),
        )
    }

    /// The first value; absent and empty are the same.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// `true` and `1`, as Go's `strconv.ParseBool` reads them; a name without a value counts.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.all(name)
            .next()
            .is_some_and(|value| matches!(value, "" | "1" | "t" | "T" | "true" | "TRUE" | "True"))
    }
}

/// Undoes percent encoding; a stray `%` stands for itself. In a query, `+` is a space.
pub(crate) fn decode(text: &str, plus_is_space: bool) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = |i: usize| bytes.get(i).and_then(|b| char::from(*b).to_digit(16));
        match bytes[at] {
            b'%' => {
                if let (Some(high), Some(low)) = (hex(at + 1), hex(at + 2)) {
                    out.push(u8::try_from(high * 16 + low).expect("invariant: two hex digits fit a byte"));
                    at += 2;
                } else {
                    out.push(b'%');
                }
            }
            b'+' if plus_is_space => out.push(b' '),
            other => out.push(other),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_flags_read_as_go_reads_them() {
        let query = Query::parse("labelSelector=a%3Db%2Cc+in+%28d%29&watch=1&watch=0&limit=&x=%zz&force");
        assert_eq!(query.get("labelSelector"), Some("a=b,c in (d)"));
        assert_eq!(query.get("limit"), None);
        assert_eq!(query.get("x"), Some("%zz"));
        assert!(query.flag("watch") && query.flag("force") && !query.flag("absent"));
        assert_eq!(query.all("watch").collect::<Vec<_>>(), ["1", "0"]);
    }
}
