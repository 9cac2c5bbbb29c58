//! The command line.

use pandodb::IndexKind;

use crate::explore::Plan;
use crate::scenarios::{self, Scenario, Twist};

/// What can be asked for.
pub const HELP: &str = "Explores schedules of PandoDB.

  --schedules N   stop after so many executions (100000)
  --seconds T     stop after so many seconds (240)
  --seed S        what all choices follow from (7)
  --scenario X    only this one; may be given several times
  --json          one line of JSON instead of a table
  --canaries      run the mistakes, which must be found
  --again PLAN    one batch, as a failure names it: random:SEED:LENGTH
  --replay TEXT   one execution by its schedule, as it was printed; `-` reads it from standard input
  --index NAME    with --replay: the index that the failure named
  --canary        with --again or --replay: with the mistake
  --list          the scenarios and what each claims";

/// What to do.
pub enum Action {
    /// Run batches of all scenarios.
    Explore,
    /// Run the mistakes.
    Canaries,
    /// Run one batch.
    Again(Plan),
    /// Run one schedule.
    Replay(String),
    /// Name the scenarios.
    List,
}

/// What was asked for.
pub struct Args {
    /// What to do.
    pub action: Action,
    /// On which scenarios.
    pub scenarios: Vec<&'static Scenario>,
    /// How many executions are enough.
    pub schedules: usize,
    /// How long to go on at most.
    pub seconds: u64,
    /// What all choices follow from.
    pub seed: u64,
    /// Whether to report in JSON.
    pub json: bool,
    /// With `--replay`: the index of the stores.
    pub index: IndexKind,
    /// Whether a single batch runs with the mistake.
    canary: bool,
}

impl Args {
    /// Whether a single batch runs with the mistake.
    pub fn twist(&self) -> Twist {
        if self.canary { Twist::Canary } else { Twist::None }
    }
}

/// Reads the command line; what is wrong with it, in words.
pub fn parse(words: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args {
        action: Action::Explore,
        scenarios: Vec::new(),
        schedules: 100_000,
        seconds: 240,
        seed: 7,
        json: false,
        index: IndexKind::default(),
        canary: false,
    };
    let mut words = words;
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
        match word.as_str() {
            "--schedules" => args.schedules = number(&value()?)? as usize,
            "--seconds" => args.seconds = number(&value()?)?,
            "--seed" => args.seed = number(&value()?)?,
            "--scenario" => args.scenarios.push(scenario(&value()?)?),
            "--index" => args.index = IndexKind::named(&value()?).map_err(|e| e.to_string())?,
            "--json" => args.json = true,
            "--canary" => args.canary = true,
            "--canaries" => args.action = Action::Canaries,
            "--list" => args.action = Action::List,
            "--again" => args.action = Action::Again(value()?.parse()?),
            "--replay" => args.action = Action::Replay(schedule(value()?)?),
            _ => return Err(HELP.to_owned()),
        }
    }
    if matches!(args.action, Action::Again(_) | Action::Replay(_)) && args.scenarios.len() != 1 {
        return Err("--again and --replay want one --scenario".into());
    }
    if args.scenarios.is_empty() {
        args.scenarios = scenarios::all().iter().collect();
    }
    Ok(args)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

fn scenario(name: &str) -> Result<&'static Scenario, String> {
    scenarios::all().iter().find(|scenario| scenario.name == name).ok_or_else(|| format!("no scenario `{name}`"))
}

fn schedule(text: String) -> Result<String, String> {
    match text.as_str() {
        "-" => std::io::read_to_string(std::io::stdin()).map_err(|e| e.to_string()),
        _ => Ok(text),
    }
}
