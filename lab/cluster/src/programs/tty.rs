//! The line discipline of a terminal: echo, erase, end of input and interrupt, and nothing more.

use bytes::Bytes;
use tokio::sync::mpsc;

use super::Sink;

/// What a key did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// Nothing that concerns the process.
    Typed,
    /// Control-C.
    Interrupt,
    /// Control-D on an empty line.
    EndOfInput,
}

/// A terminal between a user's keys and a process's standard input.
#[derive(Debug)]
pub(crate) struct Terminal {
    line: Vec<u8>,
    echo: Sink,
    input: mpsc::UnboundedSender<Bytes>,
}

impl Terminal {
    /// Keys are echoed to `echo`; whole lines go to `input`.
    pub(crate) fn new(echo: Sink, input: mpsc::UnboundedSender<Bytes>) -> Self {
        Self { line: Vec::new(), echo, input }
    }

    /// Takes keys until one ends the input or interrupts.
    pub(crate) fn keys(&mut self, bytes: &[u8]) -> Key {
        for byte in bytes {
            match byte {
                b'\r' | b'\n' => {
                    self.echo.write("\n");
                    self.line.push(b'\n');
                    let line = std::mem::take(&mut self.line);
                    // A process that no longer reads is none of the terminal's concern.
                    let _ = self.input.send(Bytes::from(line));
                }
                0x03 => {
                    self.echo.write("^C\n");
                    return Key::Interrupt;
                }
                0x04 if self.line.is_empty() => return Key::EndOfInput,
                0x08 | 0x7f => {
                    // A character of several bytes goes as a whole.
                    while let Some(last) = self.line.pop() {
                        if last & 0xc0 != 0x80 {
                            self.echo.write("\x08 \x08");
                            break;
                        }
                    }
                }
                byte if *byte >= b' ' || *byte == b'\t' => {
                    self.line.push(*byte);
                    self.echo.write([*byte]);
                }
                _ => {}
            }
        }
        Key::Typed
    }
}

/// A sink for a terminal: a line feed also returns the carriage.
pub(crate) fn cooked(sink: Sink) -> Sink {
    Sink::new(move |bytes| {
        let mut out = Vec::with_capacity(bytes.len() + 8);
        for byte in bytes {
            if *byte == b'\n' {
                out.push(b'\r');
            }
            out.push(*byte);
        }
        sink.write(out);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_echoed_and_lines_are_sent() {
        let (echo, shown) = Sink::memory();
        let (input, mut lines) = mpsc::unbounded_channel();
        let mut terminal = Terminal::new(cooked(echo), input);
        assert_eq!(terminal.keys("lé\u{7f}s\r".as_bytes()), Key::Typed);
        assert_eq!(lines.try_recv().unwrap(), "ls\n");
        assert_eq!(terminal.keys(b"x\x03"), Key::Interrupt);
        assert_eq!(shown.text(), "lé\u{8} \u{8}s\r\nx^C\r\n");
        let (input, _) = mpsc::unbounded_channel();
        let mut terminal = Terminal::new(Sink::null(), input);
        assert_eq!(terminal.keys(b"\x04"), Key::EndOfInput);
        assert_eq!(terminal.keys(b"a\x04"), Key::Typed);
    }
}
