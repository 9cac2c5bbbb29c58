//! Many threads that increment one key.
//!
//! | workload | an increment |
//! | --- | --- |
//! | `counters` | a transaction of one [`Transaction::add`](crate::transactions::Transaction::add): a merge if the engine has one, otherwise a get and a put |
//! | `counters-plain` | [`Session::merge_add`] without a transaction |
//! | `update-one` | [`Session::fetch_update`] |
//! | `update-one-mutex` | a get and a put while the thread holds one mutex |

use std::sync::{Mutex, PoisonError};

use super::program::{Program, Step, Tally, Worker, expect};
use super::rows::{Key, Visit, number};
use crate::engine::Session;
use crate::failure::Result;
use crate::transactions::{Access, Verdict};

const COUNTER: u8 = b'k';

fn key() -> Key {
    Key::of(COUNTER).u64(0)
}

fn check(session: &mut dyn Session, tally: &Tally) -> Result<Vec<String>> {
    let (mut value, mut complaints) = (Vec::new(), Vec::new());
    session.get(&key(), &mut value)?;
    expect(&mut complaints, "value of the counter", number(&value, 0)?, tally.0[0]);
    Ok(complaints)
}

fn counter(put: &mut Visit) -> Result<()> {
    put(&key(), &0i64.to_le_bytes())
}

/// Increments by merges.
pub struct Counters {
    plain: bool,
}

impl Counters {
    /// The program. With `plain`, increments use no transaction.
    pub fn new(plain: bool) -> Counters {
        Counters { plain }
    }
}

impl Program for Counters {
    fn rows(&self, put: &mut Visit) -> Result<()> {
        counter(put)
    }

    fn worker(&self, _thread: usize) -> Box<dyn Worker + '_> {
        Box::new(Counting { plain: self.plain, committed: 0 })
    }

    fn check(&self, session: &mut dyn Session, tally: &Tally) -> Result<Vec<String>> {
        check(session, tally)
    }
}

struct Counting {
    plain: bool,
    committed: i64,
}

impl Worker for Counting {
    fn draw(&mut self) {}

    fn run(&mut self, session: &mut dyn Session) -> Result<Step> {
        let (key, mut step) = (key(), Step::once());
        if self.plain {
            session.merge_add(&key, 1)?;
        } else {
            step.attempts = session.transact(Access::Write, &mut |tx| {
                tx.add(&key, 1)?;
                Ok(Verdict::Commit)
            })?;
        }
        step.written = key.len() as u64 + 8;
        self.committed += 1;
        Ok(step)
    }

    fn tally(&self) -> Tally {
        Tally([self.committed, 0, 0, 0, 0, 0])
    }
}

/// Increments by reading and writing.
pub struct UpdateOne {
    mutex: Option<Mutex<()>>,
}

impl UpdateOne {
    /// The program. With `mutex`, increments use a mutex instead of a transaction.
    pub fn new(mutex: bool) -> UpdateOne {
        UpdateOne { mutex: mutex.then(|| Mutex::new(())) }
    }
}

impl Program for UpdateOne {
    fn rows(&self, put: &mut Visit) -> Result<()> {
        counter(put)
    }

    fn worker(&self, _thread: usize) -> Box<dyn Worker + '_> {
        Box::new(Updating { mutex: self.mutex.as_ref(), value: Vec::new(), committed: 0 })
    }

    fn check(&self, session: &mut dyn Session, tally: &Tally) -> Result<Vec<String>> {
        check(session, tally)
    }
}

struct Updating<'a> {
    mutex: Option<&'a Mutex<()>>,
    value: Vec<u8>,
    committed: i64,
}

/// Adds one. A value that is not a counter becomes 1, and the check of the sum then fails.
fn increment(value: &mut Vec<u8>) {
    let next = number(value, 0).unwrap_or(0) + 1;
    value.clear();
    value.extend_from_slice(&next.to_le_bytes());
}

impl Worker for Updating<'_> {
    fn draw(&mut self) {}

    fn run(&mut self, session: &mut dyn Session) -> Result<Step> {
        let (key, mut step) = (key(), Step::once());
        if let Some(mutex) = self.mutex {
            let _only = mutex.lock().unwrap_or_else(PoisonError::into_inner);
            session.get(&key, &mut self.value)?;
            increment(&mut self.value);
            session.put(&key, &self.value)?;
        } else {
            step.attempts = session.fetch_update(&key, &mut increment)?;
        }
        step.written = key.len() as u64 + 8;
        self.committed += 1;
        Ok(step)
    }

    fn tally(&self) -> Tally {
        Tally([self.committed, 0, 0, 0, 0, 0])
    }
}
