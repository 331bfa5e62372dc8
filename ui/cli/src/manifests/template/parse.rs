//! From text to a tree.

use super::Error;

/// A part of a template.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Text(String),
    /// `{{ pipeline }}`.
    Print(usize, Pipeline),
    /// `{{ $name := pipeline }}`, or with `=` where it is not new.
    Set {
        line: usize,
        name: String,
        new: bool,
        value: Pipeline,
    },
    /// `{{ if … }}`: conditions with their branches, and the last branch.
    If(Vec<(usize, Pipeline, Vec<Node>)>, Vec<Node>),
    /// `{{ with … }}`.
    With(usize, Pipeline, Vec<Node>),
    /// `{{ range … }}` over a list.
    Range(usize, Pipeline, Vec<Node>),
}

/// Commands, each given the result of the one before as its last argument.
pub(super) type Pipeline = Vec<Vec<Operand>>;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Operand {
    /// `.a.b`, or `$x.a.b` from a variable; `$` is the root.
    Field(Option<String>, Vec<String>),
    Text(String),
    Number(i64),
    Bool(bool),
    Group(Pipeline),
    /// The name of a function.
    Name(String),
}

/// A file's own text, and the templates that it defines.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) body: Vec<Node>,
    pub(super) defined: Vec<(String, Vec<Node>)>,
}

enum Piece {
    Text(String),
    Action(usize, Vec<Token>),
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    /// `.a.b`, `.`, `$x.a`.
    Path(String),
    Word(String),
    Text(String),
    Number(i64),
    Pipe,
    Open,
    Close,
    Set,
    Assign,
}

pub(super) fn parse(file: &str, text: &str) -> Result<Parsed, Error> {
    let mut parser = Parser { file, pieces: pieces(file, text)?.into_iter(), defined: Vec::new() };
    match parser.block()? {
        (body, _, Stop::Text) => Ok(Parsed { body, defined: parser.defined }),
        (_, line, _) => parser.error(line, "this ends nothing"),
    }
}

fn error(file: &str, line: usize, message: impl Into<String>) -> Error {
    Error { file: file.to_owned(), line, message: message.into() }
}

fn pieces(file: &str, text: &str) -> Result<Vec<Piece>, Error> {
    let mut pieces = Vec::new();
    let (mut rest, mut line, mut trim) = (text, 1, false);
    loop {
        let (before, after) = match rest.split_once("{{") {
            Some((before, after)) => (before, Some(after)),
            None => (rest, None),
        };
        let start = line + before.matches('\n').count();
        let mut plain = if trim { before.trim_start() } else { before };
        let Some(mut action) = after else {
            pieces.push(Piece::Text(plain.to_owned()));
            return Ok(pieces);
        };
        if action.starts_with("- ") || action.starts_with("-\n") {
            plain = plain.trim_end();
            action = &action[1..];
        }
        pieces.push(Piece::Text(plain.to_owned()));
        let end = end_of(action).ok_or_else(|| error(file, start, "an action is not closed with }}"))?;
        let mut inner = &action[..end];
        rest = &action[end + 2..];
        line = start + inner.matches('\n').count();
        trim = inner.ends_with(" -");
        if trim {
            inner = &inner[..inner.len() - 1];
        }
        let inner = inner.trim();
        if let Some(comment) = inner.strip_prefix("/*") {
            if !comment.ends_with("*/") {
                return Err(error(file, start, "a comment is not closed with */"));
            }
        } else {
            pieces.push(Piece::Action(start, tokens(file, start, inner)?));
        }
    }
}

/// Where the action's `}}` is: not within a string or a comment.
fn end_of(action: &str) -> Option<usize> {
    if action.trim_start().starts_with("/*") {
        let close = action.find("*/")? + 2;
        return Some(close + action[close..].find("}}")?);
    }
    let (mut quoted, mut escaped) = (false, false);
    for (at, char) in action.char_indices() {
        match char {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '}' if !quoted && action[at..].starts_with("}}") => return Some(at),
            _ => {}
        }
    }
    None
}

fn tokens(file: &str, line: usize, text: &str) -> Result<Vec<Token>, Error> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '|' => push(&mut tokens, Token::Pipe, 1),
            '(' => push(&mut tokens, Token::Open, 1),
            ')' => push(&mut tokens, Token::Close, 1),
            ':' if rest.starts_with(":=") => push(&mut tokens, Token::Set, 2),
            '=' => push(&mut tokens, Token::Assign, 1),
            '"' => {
                let end = rest[1..]
                    .char_indices()
                    .scan(false, |escaped, (at, char)| {
                        let ends = char == '"' && !*escaped;
                        *escaped = char == '\\' && !*escaped;
                        Some((at, ends))
                    })
                    .find(|(_, ends)| *ends)
                    .map(|(at, _)| at + 2)
                    .ok_or_else(|| error(file, line, "a string is not closed"))?;
                // Go's escapes that are used here are JSON's.
                let text = serde_json::from_str(&rest[..end])
                    .map_err(|cause| error(file, line, format!("string {}: {cause}", &rest[..end])))?;
                push(&mut tokens, Token::Text(text), end)
            }
            '.' | '$' => {
                let end = rest[1..]
                    .find(|char: char| !is_word(char) && char != '.')
                    .map_or(rest.len(), |at| at + 1);
                push(&mut tokens, Token::Path(rest[..end].to_owned()), end)
            }
            '0'..='9' => {
                let end = rest.find(|char: char| !char.is_ascii_digit()).unwrap_or(rest.len());
                let number =
                    rest[..end].parse().map_err(|_| error(file, line, format!("number {}", &rest[..end])))?;
                push(&mut tokens, Token::Number(number), end)
            }
            char if is_word(char) => {
                let end = rest.find(|char: char| !is_word(char)).unwrap_or(rest.len());
                push(&mut tokens, Token::Word(rest[..end].to_owned()), end)
            }
            other => return Err(error(file, line, format!("character {other:?} is not known here"))),
        };
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

fn push(tokens: &mut Vec<Token>, token: Token, length: usize) -> usize {
    tokens.push(token);
    length
}

fn is_word(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_'
}

struct Parser<'a> {
    file: &'a str,
    pieces: std::vec::IntoIter<Piece>,
    defined: Vec<(String, Vec<Node>)>,
}

/// What a block ends with.
enum Stop {
    Text,
    End,
    Else(usize),
    ElseIf(usize, Pipeline),
}

impl Parser<'_> {
    fn error<T>(&self, line: usize, message: impl Into<String>) -> Result<T, Error> {
        Err(error(self.file, line, message))
    }

    fn block(&mut self) -> Result<(Vec<Node>, usize, Stop), Error> {
        let mut nodes = Vec::new();
        let mut last = 1;
        while let Some(piece) = self.pieces.next() {
            let (line, tokens) = match piece {
                Piece::Text(text) => {
                    if !text.is_empty() {
                        nodes.push(Node::Text(text));
                    }
                    continue;
                }
                Piece::Action(line, tokens) => (line, tokens),
            };
            last = line;
            let keyword = match tokens.first() {
                Some(Token::Word(word)) => word.as_str(),
                _ => "",
            };
            match (keyword, tokens.get(1..).unwrap_or_default()) {
                ("end", []) => return Ok((nodes, line, Stop::End)),
                ("else", []) => return Ok((nodes, line, Stop::Else(line))),
                ("else", [Token::Word(next), condition @ ..]) if next == "if" => {
                    let condition = self.pipeline(line, condition)?;
                    return Ok((nodes, line, Stop::ElseIf(line, condition)));
                }
                ("define", [Token::Text(name)]) => {
                    let body = self.closed(line)?;
                    self.defined.push((name.clone(), body));
                }
                ("if", condition) => {
                    let condition = self.pipeline(line, condition)?;
                    nodes.push(self.branches(line, condition)?);
                }
                ("with" | "range", value) => {
                    let value = self.pipeline(line, value)?;
                    let body = self.closed(line)?;
                    let node = if keyword == "with" { Node::With } else { Node::Range };
                    nodes.push(node(line, value, body));
                }
                (_, [set @ (Token::Set | Token::Assign), value @ ..]) => {
                    let Some(Token::Path(name)) = tokens.first() else {
                        return self.error(line, "only a variable, as in $name, can be set");
                    };
                    let value = self.pipeline(line, value)?;
                    nodes.push(Node::Set { line, name: name.clone(), new: *set == Token::Set, value });
                }
                _ => nodes.push(Node::Print(line, self.pipeline(line, &tokens)?)),
            }
        }
        Ok((nodes, last, Stop::Text))
    }

    /// A block that ends with `end`.
    fn closed(&mut self, line: usize) -> Result<Vec<Node>, Error> {
        match self.block()? {
            (nodes, _, Stop::End) => Ok(nodes),
            (_, at, Stop::Else(_) | Stop::ElseIf(..)) => {
                self.error(at, "{{ else }} is known for {{ if }} alone")
            }
            (_, _, Stop::Text) => self.error(line, "there is no {{ end }} for this"),
        }
    }

    fn branches(&mut self, line: usize, condition: Pipeline) -> Result<Node, Error> {
        let mut branches = Vec::new();
        let (mut at, mut condition) = (line, condition);
        loop {
            let (body, _, end) = self.block()?;
            branches.push((at, condition, body));
            match end {
                Stop::End => return Ok(Node::If(branches, Vec::new())),
                Stop::Else(line) => {
                    let last = self.closed(line)?;
                    return Ok(Node::If(branches, last));
                }
                Stop::ElseIf(line, next) => (at, condition) = (line, next),
                Stop::Text => return self.error(line, "there is no {{ end }} for this"),
            }
        }
    }

    fn pipeline(&self, line: usize, tokens: &[Token]) -> Result<Pipeline, Error> {
        let mut at = 0;
        let pipeline = self.commands(line, tokens, &mut at)?;
        if at < tokens.len() {
            return self.error(line, "there is a ) too many");
        }
        Ok(pipeline)
    }

    fn commands(&self, line: usize, tokens: &[Token], at: &mut usize) -> Result<Pipeline, Error> {
        let mut pipeline = vec![Vec::new()];
        while let Some(token) = tokens.get(*at) {
            let operand = match token {
                Token::Close => break,
                Token::Pipe => {
                    pipeline.push(Vec::new());
                    *at += 1;
                    continue;
                }
                Token::Open => {
                    *at += 1;
                    let group = self.commands(line, tokens, at)?;
                    if tokens.get(*at) != Some(&Token::Close) {
                        return self.error(line, "a ( is not closed");
                    }
                    Operand::Group(group)
                }
                Token::Path(path) => {
                    let (root, fields) = path.split_once('.').unwrap_or((path, ""));
                    let fields = fields.split('.').filter(|field| !field.is_empty()).map(str::to_owned);
                    Operand::Field((!root.is_empty()).then(|| root.to_owned()), fields.collect())
                }
                Token::Text(text) => Operand::Text(text.clone()),
                Token::Number(number) => Operand::Number(*number),
                Token::Word(word) if word == "true" || word == "false" => Operand::Bool(word == "true"),
                Token::Word(word) => Operand::Name(word.clone()),
                Token::Set | Token::Assign => {
                    return self.error(line, "a variable is set at the beginning of an action");
                }
            };
            pipeline.last_mut().expect("invariant: it begins with one command").push(operand);
            *at += 1;
        }
        if pipeline.iter().any(Vec::is_empty) {
            return self.error(line, "a value is missing");
        }
        Ok(pipeline)
    }
}
