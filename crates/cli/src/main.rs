//! The command-line tool of PandoDB.
fn main() {}
