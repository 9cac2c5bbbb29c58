//! counting
