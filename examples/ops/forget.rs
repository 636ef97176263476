use std::io::{self, IsTerminal, Write};

use tower_idempotency::{
    RecordKey,
    store::{Record, RecordState},
};

use crate::{failure::Failure, show};

/// Asks on the terminal. Where there is none, nobody can mean it.
pub(crate) fn confirm(key: &RecordKey, record: &Record) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::refused(
            "nothing was forgotten: there is no terminal to ask on, and no --yes",
        ));
    }
    let danger = match record.state {
        RecordState::InFlight { .. } => {
            "A run has this key now, and goes on. A second one may run beside it."
        }
        RecordState::Completed(_) => {
            "The operation was done. With this key it would be done again."
        }
        RecordState::Unknown | _ => {
            "Its run may have taken effect. The next request with this key runs."
        }
    };
    eprint!(
        "{}{danger} Forget it? Type `yes`: ",
        show::record(key, record, false)
    );
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    match answer.trim() {
        "yes" => Ok(()),
        _ => Err(Failure::refused("nothing was forgotten")),
    }
}

/// While somebody thought about it the run may have ended, or another one begun: the `yes` wasn't for that. What changes from here to
/// the store's own removal isn't noticed.
pub(crate) fn refuse_another(shown: &Record, now: Option<&Record>) -> Result<(), Failure> {
    let Some(now) = now else {
        return Err(Failure::refused(
            "nothing was forgotten: the record has gone, or expired, in the meantime",
        ));
    };
    let fields = |record: &Record| (show::state(record), record.attempt, record.fence);
    if fields(shown) == fields(now) {
        return Ok(());
    }
    let (state, attempt, _fence) = fields(now);
    Err(Failure::refused(format!(
        "nothing was forgotten: the record is another one now ({state}, attempt {attempt}), look at it again"
    )))
}
