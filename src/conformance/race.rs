//! Claimers of one key at once, for clause 2.

use std::{panic::resume_unwind, sync::Arc};

use tokio::{sync::Barrier, task::JoinSet};

use super::case::{Case, response, terms};
use crate::{
    SavedResponse,
    store::{Claim, Reservation},
};

/// The winner hangs until the others gave up, and then releases the key: of those who ask again, one acquires it.
pub(super) async fn with_a_hanging_winner(case: &Case, claimers: usize) {
    for _ in 0..2 {
        let winner = winner_of(case, claimers).await;
        case.is_in_flight().await;
        case.release(&winner).await;
    }
}

/// The winner completes while the others still ask. Once it did, nobody gets anything but its response.
pub(super) async fn with_a_completing_winner(case: &Case, claimers: usize) {
    let response = response(case.key.as_bytes());
    let mut winner = None;
    for reservation in at_once(case, claimers, Some(&response)).await {
        match reservation {
            Reservation::Acquired(claim) => only(case, &mut winner, claim),
            Reservation::Replay {
                response: saved, ..
            } => case.check(saved == response, &response, &saved),
            other => in_flight(case, &other),
        }
    }
    case.check(winner.is_some(), "one claim", &winner);
    for reservation in at_once(case, claimers, None).await {
        match reservation {
            Reservation::Replay {
                response: saved, ..
            } => case.check(saved == response, &response, &saved),
            other => case.broken("Replay", &other),
        }
    }
}

/// The one who acquires the key, and hangs.
async fn winner_of(case: &Case, claimers: usize) -> Claim {
    let mut winner = None;
    for reservation in at_once(case, claimers, None).await {
        match reservation {
            Reservation::Acquired(claim) => only(case, &mut winner, claim),
            other => in_flight(case, &other),
        }
    }
    match winner {
        Some(claim) => claim,
        None => case.broken("one claim", &winner),
    }
}

/// What so many get who reserve the key at the same moment. Whoever acquires it completes it with the response, if there is one.
async fn at_once(
    case: &Case,
    claimers: usize,
    response: Option<&SavedResponse>,
) -> Vec<Reservation> {
    let start = Arc::new(Barrier::new(claimers));
    let mut asking = JoinSet::new();
    for _ in 0..claimers {
        let (case, start, response) = (case.on(case.key), Arc::clone(&start), response.cloned());
        asking.spawn(async move {
            start.wait().await;
            let reservation = case.reserve(&terms()).await;
            if let (Reservation::Acquired(claim), Some(response)) = (&reservation, response) {
                case.complete(claim, &response).await;
            }
            reservation
        });
    }
    let mut reservations = Vec::new();
    while let Some(asked) = asking.join_next().await {
        match asked.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(reservation) => reservations.push(reservation),
            Err(Ok(panic)) => resume_unwind(panic),
            Err(Err(cancelled)) => case.broken("an answer", &cancelled),
        }
    }
    reservations
}

#[track_caller]
fn only(case: &Case, winner: &mut Option<Claim>, claim: Claim) {
    case.check(winner.is_none(), "one claim", &(&winner, &claim));
    *winner = Some(claim);
}

#[track_caller]
fn in_flight(case: &Case, reservation: &Reservation) {
    let in_flight = matches!(reservation, Reservation::InFlight { .. });
    case.check(in_flight, "InFlight", reservation);
}
