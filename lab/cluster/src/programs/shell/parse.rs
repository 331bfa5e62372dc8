//! Text to a command list, or a named construct that is not simulated.

use std::iter::Peekable;
use std::str::Chars;

/// Why a script is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SyntaxError {
    #[error(
        "{0} is not simulated; a simulated shell knows ';', '&&', '||', '|', variables, quotes and redirects to /dev/null"
    )]
    Unsupported(String),
    #[error("unterminated {0}")]
    Unterminated(&'static str),
    #[error("syntax error near unexpected '{0}'")]
    Unexpected(&'static str),
}

/// A piece of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// Literal text. Patterns count in it only if it was not quoted.
    Text { text: String, quoted: bool },
    /// `$NAME`, `${NAME}` or `${NAME:-default}`.
    Variable { name: String, default: Option<String>, quoted: bool },
    /// `$(script)`.
    Output { list: List, quoted: bool },
}

pub(super) type Word = Vec<Piece>;

/// Where standard output or error of a command goes instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Redirect {
    StdoutNull,
    StderrNull,
    StderrToStdout,
    StdoutToStderr,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Command {
    pub(super) assignments: Vec<(String, Word)>,
    pub(super) words: Vec<Word>,
    pub(super) redirects: Vec<Redirect>,
}

/// When a pipeline runs, given the exit code before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Always,
    AfterSuccess,
    AfterFailure,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct List(pub(super) Vec<(When, Vec<Command>)>);

impl List {
    /// The programs that the list would start, in order; `None` for one that is known only at run time.
    pub(super) fn programs(&self) -> Box<dyn Iterator<Item = Option<&str>> + '_> {
        Box::new(self.0.iter().flat_map(|(_, pipeline)| pipeline).flat_map(|command| {
            let name = command.words.first().map(|word| match word.as_slice() {
                [Piece::Text { text, .. }] => Some(text.as_str()),
                _ => None,
            });
            let inner = command
                .words
                .iter()
                .chain(command.assignments.iter().map(|(_, word)| word))
                .flatten()
                .filter_map(|piece| match piece {
                    Piece::Output { list, .. } => Some(list.programs()),
                    _ => None,
                })
                .flatten();
            name.into_iter().chain(inner)
        }))
    }
}

/// Words that begin a construct which is not simulated.
const RESERVED: &[&str] = &[
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "function",
    "{", "}", "!", "[[", "select", "trap", "eval", "source", ".", "read", "wait",
];

/// Parses a whole script.
pub(super) fn parse(script: &str) -> Result<List, SyntaxError> {
    let mut parser = Parser { chars: script.chars().peekable(), depth: 0 };
    let list = parser.list()?;
    match parser.chars.next() {
        None => Ok(list),
        Some(_) => Err(SyntaxError::Unexpected(")")),
    }
}

struct Parser<'a> {
    chars: Peekable<Chars<'a>>,
    /// Open `$(`.
    depth: u32,
}

/// Nesting of `$(…)` beyond this is refused rather than risking the stack.
const MAX_DEPTH: u32 = 16;

impl Parser<'_> {
    fn list(&mut self) -> Result<List, SyntaxError> {
        let mut list = List::default();
        let mut when = When::Always;
        loop {
            let pipeline = self.pipeline()?;
            let empty = pipeline.is_empty();
            if !empty {
                list.0.push((when, pipeline));
            }
            match self.chars.peek() {
                None => {
                    if empty && when != When::Always {
                        return Err(SyntaxError::Unexpected("end of script"));
                    }
                    return Ok(list);
                }
                Some(')') => return Ok(list),
                Some(';' | '\n') => {
                    if empty && when != When::Always && self.chars.peek() == Some(&';') {
                        return Err(SyntaxError::Unexpected(";"));
                    }
                    self.chars.next();
                    if !empty || when == When::Always {
                        when = When::Always;
                    }
                }
                Some('&') => {
                    self.chars.next();
                    if self.chars.next_if_eq(&'&').is_none() {
                        return Err(SyntaxError::Unsupported(
                            "running in the background with '&'".to_owned(),
                        ));
                    }
                    if empty {
                        return Err(SyntaxError::Unexpected("&&"));
                    }
                    when = When::AfterSuccess;
                }
                // A single bar was eaten by the pipeline.
                Some(_) => {
                    self.chars.next();
                    if empty {
                        return Err(SyntaxError::Unexpected("||"));
                    }
                    when = When::AfterFailure;
                }
            }
        }
    }

    /// Commands joined by `|`; stops before `;`, a line feed, `&`, `)`, or the second bar of `||`.
    fn pipeline(&mut self) -> Result<Vec<Command>, SyntaxError> {
        let mut commands = Vec::new();
        loop {
            let command = self.command()?;
            let empty = command == Command::default();
            if !empty {
                commands.push(command);
            } else if !commands.is_empty() {
                return Err(SyntaxError::Unexpected("|"));
            }
            if self.chars.peek() != Some(&'|') {
                return Ok(commands);
            }
            let mut ahead = self.chars.clone();
            ahead.next();
            if ahead.peek() == Some(&'|') {
                self.chars.next();
                return Ok(commands);
            }
            if empty {
                return Err(SyntaxError::Unexpected("|"));
            }
            self.chars.next();
        }
    }

    fn command(&mut self) -> Result<Command, SyntaxError> {
        let mut command = Command::default();
        loop {
            while self.chars.next_if(|c| matches!(c, ' ' | '\t' | '\r')).is_some() {}
            match self.chars.peek().copied() {
                None | Some(';' | '\n' | '&' | '|' | ')') => return Ok(command),
                Some('#') => while self.chars.next_if(|c| *c != '\n').is_some() {},
                Some('(') => return Err(SyntaxError::Unsupported("a subshell '( … )'".to_owned())),
                Some('<') => return Err(SyntaxError::Unsupported("a redirect of input '<'".to_owned())),
                Some('>') => {
                    self.chars.next();
                    let redirect = self.redirect(false)?;
                    command.redirects.push(redirect);
                }
                Some('\\') if self.continues() => {
                    self.chars.next();
                    self.chars.next();
                }
                Some(_) => {
                    let word = self.word()?;
                    // A lone digit directly before '>' names the stream.
                    if let ([Piece::Text { text, quoted: false }], Some('>')) =
                        (word.as_slice(), self.chars.peek())
                        && (text == "1" || text == "2")
                    {
                        let error = text == "2";
                        self.chars.next();
                        let redirect = self.redirect(error)?;
                        command.redirects.push(redirect);
                        continue;
                    }
                    if command.words.is_empty() {
                        if let Some(assignment) = assignment(&word) {
                            command.assignments.push(assignment);
                            continue;
                        }
                        if let [Piece::Text { text, quoted: false }] = word.as_slice()
                            && RESERVED.contains(&text.as_str())
                        {
                            return Err(SyntaxError::Unsupported(format!("'{text}'")));
                        }
                    }
                    command.words.push(word);
                }
            }
        }
    }

    /// Whether a backslash and a line feed follow.
    fn continues(&self) -> bool {
        let mut ahead = self.chars.clone();
        ahead.next();
        ahead.peek() == Some(&'\n')
    }

    fn redirect(&mut self, error: bool) -> Result<Redirect, SyntaxError> {
        self.chars.next_if_eq(&'>');
        if self.chars.next_if_eq(&'&').is_some() {
            return match (error, self.chars.next()) {
                (true, Some('1')) => Ok(Redirect::StderrToStdout),
                (false, Some('2')) => Ok(Redirect::StdoutToStderr),
                _ => Err(SyntaxError::Unsupported("this duplication of a stream".to_owned())),
            };
        }
        while self.chars.next_if(|c| matches!(c, ' ' | '\t')).is_some() {}
        let target = self.word()?;
        match target.as_slice() {
            [Piece::Text { text, .. }] if text == "/dev/null" => {
                Ok(if error { Redirect::StderrNull } else { Redirect::StdoutNull })
            }
            [Piece::Text { text, .. }] if text == "/dev/stderr" && !error => Ok(Redirect::StdoutToStderr),
            [Piece::Text { text, .. }] => Err(SyntaxError::Unsupported(format!("writing the file '{text}'"))),
            _ => Err(SyntaxError::Unsupported("writing a file".to_owned())),
        }
    }

    fn word(&mut self) -> Result<Word, SyntaxError> {
        let mut word = Word::new();
        let mut plain = String::new();
        let flush = |word: &mut Word, plain: &mut String| {
            if !plain.is_empty() {
                word.push(Piece::Text { text: std::mem::take(plain), quoted: false });
            }
        };
        while let Some(c) = self.chars.peek().copied() {
            match c {
                ' ' | '\t' | '\r' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')' => break,
                '\'' => {
                    self.chars.next();
                    flush(&mut word, &mut plain);
                    let mut text = String::new();
                    loop {
                        match self.chars.next() {
                            Some('\'') => break,
                            Some(c) => text.push(c),
                            None => return Err(SyntaxError::Unterminated("single quote")),
                        }
                    }
                    word.push(Piece::Text { text, quoted: true });
                }
                '"' => {
                    self.chars.next();
                    flush(&mut word, &mut plain);
                    self.double_quoted(&mut word)?;
                }
                '\\' => {
                    self.chars.next();
                    flush(&mut word, &mut plain);
                    match self.chars.next() {
                        Some('\n') => {}
                        Some(c) => word.push(Piece::Text { text: c.to_string(), quoted: true }),
                        None => plain.push('\\'),
                    }
                }
                '`' => return Err(SyntaxError::Unsupported("'`…`' (use '$(…)')".to_owned())),
                '$' => {
                    self.chars.next();
                    flush(&mut word, &mut plain);
                    let piece = self.dollar(false)?;
                    word.push(piece);
                }
                c => {
                    self.chars.next();
                    plain.push(c);
                }
            }
        }
        flush(&mut word, &mut plain);
        Ok(word)
    }

    fn double_quoted(&mut self, word: &mut Word) -> Result<(), SyntaxError> {
        let mut text = String::new();
        loop {
            match self.chars.next() {
                None => return Err(SyntaxError::Unterminated("double quote")),
                Some('"') => break,
                Some('\\') => match self.chars.next() {
                    Some('\n') => {}
                    Some(c @ ('"' | '\\' | '$' | '`')) => text.push(c),
                    Some(c) => text.extend(['\\', c]),
                    None => return Err(SyntaxError::Unterminated("double quote")),
                },
                Some('$') => {
                    word.push(Piece::Text { text: std::mem::take(&mut text), quoted: true });
                    let piece = self.dollar(true)?;
                    word.push(piece);
                }
                Some('`') => return Err(SyntaxError::Unsupported("'`…`' (use '$(…)')".to_owned())),
                Some(c) => text.push(c),
            }
        }
        // An empty pair of quotes is still a word.
        word.push(Piece::Text { text, quoted: true });
        Ok(())
    }

    /// What follows a dollar sign.
    fn dollar(&mut self, quoted: bool) -> Result<Piece, SyntaxError> {
        let variable = |name: String, default| Piece::Variable { name, default, quoted };
        match self.chars.peek().copied() {
            Some('(') => {
                self.chars.next();
                if self.chars.peek() == Some(&'(') {
                    return Err(SyntaxError::Unsupported("arithmetic '$((…))'".to_owned()));
                }
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return Err(SyntaxError::Unsupported(format!("nesting '$(' more than {MAX_DEPTH} deep")));
                }
                let list = self.list()?;
                self.depth -= 1;
                match self.chars.next() {
                    Some(')') => Ok(Piece::Output { list, quoted }),
                    _ => Err(SyntaxError::Unterminated("'$('")),
                }
            }
            Some('{') => {
                self.chars.next();
                let mut name = String::new();
                while let Some(c) = self.chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    name.push(c);
                }
                match self.chars.next() {
                    Some('}') if !name.is_empty() => Ok(variable(name, None)),
                    Some(':') if self.chars.next_if_eq(&'-').is_some() => {
                        let mut default = String::new();
                        loop {
                            match self.chars.next() {
                                Some('}') => return Ok(variable(name, Some(default))),
                                Some('$' | '`') => {
                                    return Err(SyntaxError::Unsupported(
                                        "a default that is itself expanded".to_owned(),
                                    ));
                                }
                                Some(c) => default.push(c),
                                None => return Err(SyntaxError::Unterminated("'${'")),
                            }
                        }
                    }
                    None => Err(SyntaxError::Unterminated("'${'")),
                    _ => Err(SyntaxError::Unsupported("this form of '${…}'".to_owned())),
                }
            }
            Some(c @ ('?' | '$' | '#' | '@' | '*')) => {
                self.chars.next();
                Ok(variable(c.to_string(), None))
            }
            Some(c) if c.is_ascii_alphanumeric() || c == '_' => {
                let mut name = String::new();
                while let Some(c) = self.chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    name.push(c);
                    if name.len() == 1 && c.is_ascii_digit() {
                        break;
                    }
                }
                Ok(variable(name, None))
            }
            _ => Ok(Piece::Text { text: "$".to_owned(), quoted }),
        }
    }
}

/// `NAME=value` as an assignment.
fn assignment(word: &Word) -> Option<(String, Word)> {
    let Piece::Text { text, quoted: false } = word.first()? else { return None };
    let (name, value) = text.split_once('=')?;
    let mut chars = name.chars();
    let valid = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !valid {
        return None;
    }
    let mut rest = Word::new();
    if !value.is_empty() {
        // The value of an assignment is never split or expanded as a pattern.
        rest.push(Piece::Text { text: value.to_owned(), quoted: true });
    }
    rest.extend(word[1..].iter().cloned());
    Some((name.to_owned(), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_not_simulated_is_refused_by_name() {
        for (script, expected) in [
            ("while true; do nvidia-smi; done", "'while' is not simulated"),
            ("echo a; for i in 1 2; do echo $i; done", "'for' is not simulated"),
            ("sleep 1 &", "background"),
            ("echo a > /tmp/x", "writing the file '/tmp/x'"),
            ("cat < /etc/hosts", "a redirect of input"),
            ("(echo a)", "a subshell"),
            ("echo $((1+1))", "arithmetic"),
            ("echo 'a", "unterminated single quote"),
            ("echo \"a", "unterminated double quote"),
            ("echo $(ls", "unterminated '$('"),
            ("&& echo", "unexpected '&&'"),
            ("echo |", "unexpected '|'"),
            ("echo a && ", "unexpected 'end of script'"),
            ("echo )", "unexpected ')'"),
        ] {
            let error = parse(script).unwrap_err().to_string();
            assert!(error.contains(expected), "{script}: {error}");
        }
    }

    #[test]
    fn the_programs_of_a_script_are_known_before_it_runs() {
        let list = parse("A=$(date) env | grep X && \"$B\" || true").unwrap();
        assert_eq!(
            list.programs().collect::<Vec<_>>(),
            [Some("env"), Some("date"), Some("grep"), None, Some("true")]
        );
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(script in "[a-z $(){}'\"|&;<>\\\\#=`\n]{0,60}") {
            let _ = parse(&script);
        }
    }
}
