//! See [`gantry_kubernetes::command`].
#![expect(clippy::print_stderr, reason = "a command-line tool tells errors there")]

fn main() {
    match gantry_kubernetes::command::main() {
        Ok(code) => std::process::exit(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            std::process::exit(1);
        }
    }
}
