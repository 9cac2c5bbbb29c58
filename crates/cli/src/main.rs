//! The program `pando`, which only calls [`pando_cli`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    pando_cli::main()
}
