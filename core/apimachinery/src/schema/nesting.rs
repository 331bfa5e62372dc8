//! How deep the CEL compiler would recurse for an expression, judged without compiling it.
//!
//! The compiler's parser recurses through some twenty grammar rules for each bracket, and through several functions for each link of a
//! chain (`a.b.c`, `a + b + c`); it has no limit of its own, and the end of the stack ends the process. The weights below are what one
//! bracket, one link and one `? :` were measured to take in an unoptimised build, in units of 10 KiB.

const BRACKET: usize = 16;
const LINK: usize = 4;
const TERNARY: usize = 3;
/// Three quarters of a thread's usual stack of 2 MiB.
const LIMIT: usize = 150;

/// What stands open between two brackets.
#[derive(Default)]
struct Level {
    links: usize,
    operators: usize,
    ternaries: usize,
}

impl Level {
    fn weight(&self) -> usize {
        BRACKET + LINK * (self.links + self.operators) + TERNARY * self.ternaries
    }

    fn end_chain(&mut self) {
        (self.links, self.operators) = (0, 0);
    }
}

/// Whether an expression is shallow enough to be compiled.
pub(super) fn is_shallow(expression: &str) -> bool {
    let mut open: Vec<Level> = vec![Level::default()];
    let mut rest = expression;
    let mut previous = ' ';
    while let Some(char) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else {
            string_length(rest, matches!(previous, 'r' | 'R'))
        };
        if skipped > 0 {
            (previous, rest) = (' ', &rest[skipped..]);
            continue;
        }
        let depth = open.len();
        let level = open.last_mut().expect("invariant: the outermost level is never closed");
        let is_word = |char: char| char.is_alphanumeric() || char == '_';
        match char {
            '(' | '[' | '{' => {
                level.links += 1;
                open.push(Level::default());
            }
            ')' | ']' | '}' if depth > 1 => {
                open.pop();
            }
            '.' => level.links += 1,
            ',' => *level = Level::default(),
            '?' => {
                level.end_chain();
                level.ternaries += 1;
            }
            '&' | '|' | ':' => level.end_chain(),
            '=' | '!' | '<' | '>' | '+' | '-' | '*' | '/' | '%' if !"=!<>+-*/%".contains(previous) => {
                level.links = 0;
                level.operators += 1;
            }
            'i' if rest.starts_with("in") && !is_word(previous) && !rest[2..].starts_with(is_word) => {
                level.links = 0;
                level.operators += 1;
            }
            _ => {}
        }
        if open.iter().map(Level::weight).sum::<usize>() > LIMIT + BRACKET {
            return false;
        }
        (previous, rest) = (char, &rest[char.len_utf8()..]);
    }
    true
}

/// The length of the string literal that a text begins with; 0 when it begins with none that ends.
fn string_length(text: &str, is_raw: bool) -> usize {
    let delimiters = ["\"\"\"", "'''", "\"", "'"];
    let Some(delimiter) = delimiters.into_iter().find(|delimiter| text.starts_with(*delimiter)) else {
        return 0;
    };
    let mut is_escaped = false;
    for (index, char) in text.char_indices().skip(delimiter.len()) {
        if is_escaped {
            is_escaped = false;
        } else if char == '\\' && !is_raw {
            is_escaped = true;
        } else if text[index..].starts_with(delimiter) {
            return index + delimiter.len();
        } else if char == '\n' && delimiter.len() == 1 {
            return 0;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_shallow_enough() {
        let sum = vec!["(self.size() > 1 ? self[1].matches.size() : 0)"; 16].join(" + ");
        for rule in [
            "self.minReplicas <= self.replicas && self.replicas <= self.maxReplicas",
            "self.rules.all(rule, rule.hosts.exists(host, host.matches('^([a-z]+[.])*[a-z]+$')))",
            "has(self.a) ? (has(self.b) ? self.a.x.y == self.b.x.y : !has(self.c)) : true // it's optional",
            &format!("self.matches(r'^{}$')", "[a-z.+*-]\\".repeat(200)),
            &format!("self in [{}]", vec!["'a.b.c.d'"; 500].join(", ")),
            &vec!["self.a.b.c != oldSelf.a.b.c"; 200].join(" && "),
            &format!("{sum} <= 128"),
        ] {
            assert!(is_shallow(rule), "{rule}");
        }
    }

    #[test]
    fn what_would_run_off_the_stack_is_not() {
        for rule in [
            "(".repeat(12) + "true" + &")".repeat(12),
            "size([".repeat(6) + &"])".repeat(6),
            "self".to_owned() + &".a".repeat(50),
            "self".to_owned() + &"[0]".repeat(50),
            "self".to_owned() + &" + self".repeat(50),
            "self".to_owned() + &" in self".repeat(50),
            "true ? true : ".repeat(90) + "true",
            // What looks like a string or a comment hides nothing.
            "// '''\n".to_owned() + &"(".repeat(12) + "'''",
            "r'\\' + ".to_owned() + &"(".repeat(12) + "'",
            "'\n".to_owned() + &"(".repeat(12) + "'",
        ] {
            assert!(!is_shallow(&rule), "{rule}");
        }
    }
}
