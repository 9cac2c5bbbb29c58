//! [`Failure`]: the error of every function of the lab, whichever engine it comes from.

/// An error of the lab.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
/// The result of a function of the lab.
pub type Result<T> = std::result::Result<T, Failure>;
