//! The grammar of label selector strings, with the messages of `k8s.io/apimachinery/pkg/labels`.

use super::labels::{Operator, Requirement};
use crate::FieldPath;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Symbol(&'a str),
    End,
}

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Self::Word(text) | Self::Symbol(text) => text,
            Self::End => "",
        }
    }
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    next: usize,
}

/// The requirements of a selector string, or what was found and what is expected there.
pub(super) fn parse(input: &str) -> Result<Vec<Requirement>, String> {
    let mut parser = Parser { tokens: tokens(input), next: 0 };
    let mut requirements = Vec::new();
    loop {
        match parser.peek() {
            Token::Word(_) | Token::Symbol("!") => {
                requirements.push(
                    parser.requirement().map_err(|error| format!("unable to parse requirement: {error}"))?,
                );
            }
            Token::End => return Ok(requirements),
            other @ Token::Symbol(_) => {
                return Err(format!("found '{}', expected: !, identifier, or 'end of string'", other.text()));
            }
        }
        match parser.take() {
            Token::End => return Ok(requirements),
            Token::Symbol(",") => match parser.peek() {
                Token::Word(_) | Token::Symbol("!") => {}
                other => return Err(format!("found '{}', expected: identifier after ','", other.text())),
            },
            other => return Err(format!("found '{}', expected: ',' or 'end of string'", other.text())),
        }
    }
}

fn tokens(input: &str) -> Vec<Token<'_>> {
    const SYMBOLS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];
    let mut rest = input.trim_start();
    let mut tokens = Vec::new();
    while !rest.is_empty() {
        let length = if let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
            tokens.push(Token::Symbol(&rest[..symbol.len()]));
            symbol.len()
        } else {
            let end = rest.find(|c: char| c.is_whitespace() || "=!(),><".contains(c)).unwrap_or(rest.len());
            tokens.push(Token::Word(&rest[..end]));
            end
        };
        rest = rest[length..].trim_start();
    }
    tokens
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        self.tokens.get(self.next).copied().unwrap_or(Token::End)
    }

    fn take(&mut self) -> Token<'a> {
        let token = self.peek();
        self.next += 1;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let is_negated = self.peek() == Token::Symbol("!");
        if is_negated {
            self.take();
        }
        let key = self.word()?;
        let ends = matches!(self.peek(), Token::End | Token::Symbol(","));
        let (operator, values) = if is_negated {
            (Operator::DoesNotExist, Vec::new())
        } else if ends {
            (Operator::Exists, Vec::new())
        } else {
            match self.take() {
                Token::Symbol("=" | "==") => (Operator::In, vec![self.value()?]),
                Token::Symbol("!=") => (Operator::NotIn, vec![self.value()?]),
                Token::Symbol(">") => (Operator::Gt, vec![self.value()?]),
                Token::Symbol("<") => (Operator::Lt, vec![self.value()?]),
                Token::Word("in") => (Operator::In, self.values()?),
                Token::Word("notin") => (Operator::NotIn, self.values()?),
                other => {
                    return Err(format!("found '{}', expected: in, notin, =, ==, !=, gt, lt", other.text()));
                }
            }
        };
        Requirement::new(key, operator, values, &FieldPath::root()).map_err(|error| error.to_string())
    }

    fn word(&mut self) -> Result<&'a str, String> {
        match self.take() {
            Token::Word(word) => Ok(word),
            other => Err(format!("found '{}', expected: identifier", other.text())),
        }
    }

    /// One value, which may be empty before a comma and at the end.
    fn value(&mut self) -> Result<String, String> {
        match self.peek() {
            Token::End | Token::Symbol(",") => Ok(String::new()),
            _ => self.word().map(str::to_owned),
        }
    }

    /// Values in parentheses; nothing between two commas is the empty value.
    fn values(&mut self) -> Result<Vec<String>, String> {
        match self.take() {
            Token::Symbol("(") => {}
            other => return Err(format!("found '{}' expected: '('", other.text())),
        }
        if self.peek() == Token::Symbol(")") {
            self.take();
            return Ok(Vec::new());
        }
        let mut values = Vec::new();
        loop {
            let value = match self.peek() {
                Token::Word(word) => {
                    self.take();
                    word
                }
                Token::Symbol("," | ")") => "",
                other => return Err(format!("found '{}', expected: ',', ')' or identifier", other.text())),
            };
            values.push(value.to_owned());
            match self.take() {
                Token::Symbol(",") => {}
                Token::Symbol(")") => break,
                other => return Err(format!("found '{}', expected: ',' or ')'", other.text())),
            }
        }
        values.sort_unstable();
        values.dedup();
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_tells_what_was_found_and_what_is_expected() {
        let cases = [
            ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
            ("=b", "found '=', expected: !, identifier, or 'end of string'"),
            ("a=b,", "found '', expected: identifier after ','"),
            ("a=b c", "found 'c', expected: ',' or 'end of string'"),
            ("!a=b", "found '=', expected: ',' or 'end of string'"),
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
            (
                "a in ()",
                "unable to parse requirement: values: Invalid value: []: for 'in', 'notin' operators, values set \
                 can't be empty",
            ),
            (
                "a>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value \
                 must be an integer",
            ),
        ];
        for (input, reason) in cases {
            assert_eq!(parse(input).unwrap_err(), reason, "{input}");
        }
        assert!(
            parse("a^=b")
                .unwrap_err()
                .starts_with("unable to parse requirement: key: Invalid value: \"a^\": name part")
        );
        assert!(
            parse("a=b^").unwrap_err().contains("values[0][a]: Invalid value: \"b^\": a valid label must be")
        );
    }
}
