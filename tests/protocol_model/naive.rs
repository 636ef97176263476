//! A store of one record, so plain that it can be checked by reading it next to the contract.

/// How long a claim lasts unrenewed, in ticks.
pub(crate) const LEASE: u8 = 1;

/// How long a record is kept after its lease or its completion, in ticks.
pub(crate) const RETENTION: u8 = 1;

/// The unexpired record of the one key, if there is one. Times are what is left, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Record {
    /// The number of the request that claimed it last, for its nonce.
    pub(crate) owner: usize,
    pub(crate) attempt: u32,
    pub(crate) state: State,
    pub(crate) expires: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum State {
    Running { lease: u8 },
    Completed,
    Abandoned,
}

/// What a call answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// With this attempt number.
    Acquired(u32),
    /// The response of this request.
    Replay(usize),
    InFlight,
    Unknown,
    Ok,
    LostClaim,
}

pub(crate) type Slot = Option<Record>;

pub(crate) fn reserve(slot: &mut Slot, run: usize, run_again: bool) -> Answer {
    let attempt = match *slot {
        None => 1,
        Some(record) => match record.state {
            State::Completed => return Answer::Replay(record.owner),
            State::Running { .. } if record.owner == run => record.attempt,
            State::Running { lease: 1.. } => return Answer::InFlight,
            _ if run_again => record.attempt + 1,
            _ => return Answer::Unknown,
        },
    };
    *slot = Some(Record {
        owner: run,
        attempt,
        state: State::Running { lease: LEASE },
        expires: LEASE + RETENTION,
    });
    Answer::Acquired(attempt)
}

pub(crate) fn renew(slot: &mut Slot, run: usize) -> Answer {
    match slot {
        Some(record) if record.owner == run && matches!(record.state, State::Running { .. }) => {
            record.state = State::Running { lease: LEASE };
            record.expires = LEASE + RETENTION;
            Answer::Ok
        }
        _ => Answer::LostClaim,
    }
}

/// `complete` and `abandon`, which differ in nothing but the state that they leave.
pub(crate) fn settle(slot: &mut Slot, run: usize, attempt: u32, state: State) -> Answer {
    let unsettled = match *slot {
        None => true,
        Some(record) if record.owner != run => return Answer::LostClaim,
        Some(record) if record.state == state => return Answer::Ok,
        Some(record) => matches!(record.state, State::Running { .. }),
    };
    if !unsettled {
        return Answer::LostClaim;
    }
    *slot = Some(Record {
        owner: run,
        attempt,
        state,
        expires: RETENTION,
    });
    Answer::Ok
}

pub(crate) fn release(slot: &mut Slot, run: usize) -> Answer {
    match *slot {
        None => Answer::Ok,
        Some(record) if record.owner == run && matches!(record.state, State::Running { .. }) => {
            *slot = None;
            Answer::Ok
        }
        Some(_) => Answer::LostClaim,
    }
}

pub(crate) fn tick(slot: &mut Slot) {
    *slot = slot.filter(|record| record.expires > 1).map(|mut record| {
        record.expires -= 1;
        if let State::Running { lease } = &mut record.state {
            *lease = lease.saturating_sub(1);
        }
        record
    });
}
