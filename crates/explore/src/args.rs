//! Parses the command line.

use crate::explore::Plan;
use crate::indexes::Variant;
use crate::scenarios::{self, Scenario, Twist};

/// The help text.
pub const HELP: &str = "Explores thread schedules of PandoDB.

  --schedules N   stop after N executions (100000)
  --seconds T     stop after T seconds (240)
  --seed S        the seed of all random choices (7)
  --scenario X    run only this scenario; may be given several times
  --json          print one line of JSON instead of a table
  --canaries      run the scenarios with their deliberate mistakes, which must be found
  --again PLAN    run one batch, as printed with a failure: random:SEED:LENGTH
  --replay TEXT   run one execution from its schedule, as printed with a failure; `-` reads it from standard input
  --index NAME    with --replay: the index, as printed with the failure
  --canary        with --again or --replay: run with the deliberate mistake
  --list          list the scenarios and the claim of each";

/// The action to run.
pub enum Action {
    /// Run batches of all scenarios.
    Explore,
    /// Run the canaries.
    Canaries,
    /// Run one batch.
    Again(Plan),
    /// Run one schedule.
    Replay(String),
    /// List the scenarios.
    List,
}

/// The parsed command line.
pub struct Args {
    /// The action to run.
    pub action: Action,
    /// The scenarios to run.
    pub scenarios: Vec<&'static Scenario>,
    /// Number of executions to reach.
    pub schedules: usize,
    /// Time limit in seconds.
    pub seconds: u64,
    /// The seed of all random choices.
    pub seed: u64,
    /// Whether to report in JSON.
    pub json: bool,
    /// The index of the stores in a replayed schedule (`--replay`).
    pub index: Variant,
    /// Whether a single batch or replay runs with the deliberate mistake.
    canary: bool,
}

impl Args {
    /// Whether a single batch or replay runs with the deliberate mistake.
    pub fn twist(&self) -> Twist {
        if self.canary { Twist::Canary } else { Twist::None }
    }
}

/// Parses the command line. The error is a message for the user.
pub fn parse(words: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args {
        action: Action::Explore,
        scenarios: Vec::new(),
        schedules: 100_000,
        seconds: 240,
        seed: 7,
        json: false,
        index: Variant::default(),
        canary: false,
    };
    let mut words = words;
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--schedules" => args.schedules = number(&value()?)? as usize,
            "--seconds" => args.seconds = number(&value()?)?,
            "--seed" => args.seed = number(&value()?)?,
            "--scenario" => args.scenarios.push(scenario(&value()?)?),
            "--index" => args.index = Variant::named(&value()?)?,
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
        return Err("--again and --replay need exactly one --scenario".into());
    }
    if args.scenarios.is_empty() {
        args.scenarios = scenarios::all().iter().collect();
    }
    Ok(args)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

fn scenario(name: &str) -> Result<&'static Scenario, String> {
    scenarios::all()
        .iter()
        .find(|scenario| scenario.name == name)
        .ok_or_else(|| format!("unknown scenario `{name}`; --list prints all"))
}

fn schedule(text: String) -> Result<String, String> {
    match text.as_str() {
        "-" => std::io::read_to_string(std::io::stdin()).map_err(|e| e.to_string()),
        _ => Ok(text),
    }
}
