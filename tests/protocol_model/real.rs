//! The memory store, driven by the same actions.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tower_idempotency::{
    Fingerprint, MemoryStore, RecordKey, SavedResponse, StoreError, StoreErrorKind, Tag,
    store::{Claim, Nonce, RecordState, Reservation, Store, Takeover, Terms},
};

use crate::{
    naive::{Answer, LEASE, RETENTION, Slot, State},
    world::{Action, Call, REQUESTS},
};

const TICK: Duration = Duration::from_secs(1);
const KEY: RecordKey = RecordKey::from_bytes([7; 32]);
const FINGERPRINT: Fingerprint = Fingerprint::new(Tag::from_u16(0x0101), [7; 32]);

pub(crate) struct Real {
    store: MemoryStore,
    takeover: Takeover,
    /// The claim of each request, if it ever got one.
    claims: [Option<Claim>; REQUESTS],
    last_fence: u64,
}

impl Real {
    pub(crate) fn new(run_again: bool) -> Self {
        let takeover = match run_again {
            true => Takeover::RunAgain,
            false => Takeover::Refuse,
        };
        Self {
            store: MemoryStore::new(),
            takeover,
            claims: [const { None }; REQUESTS],
            last_fence: 0,
        }
    }

    pub(crate) async fn act(&mut self, action: Action) -> Option<Answer> {
        match action {
            Action::Call {
                request,
                call: Call::Reserve,
                ..
            } => Some(self.reserve(request).await),
            Action::Call { request, call, .. } => Some(self.call(request, call).await),
            Action::Effect(_) | Action::Die(_) => None,
            Action::Tick => {
                tokio::time::advance(TICK).await;
                None
            }
            Action::Purge => {
                self.store.purge_expired(u32::MAX).await.unwrap();
                None
            }
        }
    }

    /// Whether the record is what the model says.
    pub(crate) async fn agrees_with(&self, slot: Slot) -> bool {
        let record = self.store.inspect(&KEY).await.unwrap();
        let (Some(real), Some(model)) = (&record, slot) else {
            return record.is_none() && slot.is_none();
        };
        let state = match (&real.state, model.state) {
            (RecordState::InFlight { lease_left, .. }, State::Running { lease }) => {
                *lease_left == TICK * u32::from(lease)
            }
            (RecordState::Completed(saved), State::Completed) => *saved == response(model.owner),
            (RecordState::Unknown, State::Running { lease: 0 } | State::Abandoned) => true,
            _ => false,
        };
        state && real.attempt == model.attempt && real.expires_in == TICK * u32::from(model.expires)
    }

    async fn reserve(&mut self, request: usize) -> Answer {
        let terms =
            Terms::new(nonce(request), ticks(LEASE), ticks(RETENTION)).with_takeover(self.takeover);
        match self
            .store
            .reserve(&KEY, &FINGERPRINT, &terms)
            .await
            .unwrap()
        {
            Reservation::Acquired(claim) => {
                let own = self.claims[request].as_ref().map(Claim::fence);
                assert!(claim.fence() > self.last_fence || own == Some(claim.fence()));
                self.last_fence = self.last_fence.max(claim.fence());
                let attempt = claim.attempt();
                self.claims[request] = Some(claim);
                Answer::Acquired(attempt)
            }
            Reservation::Replay {
                response: saved,
                expires_in,
                ..
            } => {
                let of = (0..REQUESTS).find(|request| saved == response(*request));
                let record = self.store.inspect(&KEY).await.unwrap();
                assert_eq!(record.unwrap().expires_in, expires_in);
                Answer::Replay(of.unwrap())
            }
            Reservation::InFlight { .. } => Answer::InFlight,
            Reservation::Unknown => Answer::Unknown,
            other => panic!("{other:?}"),
        }
    }

    async fn call(&self, request: usize, call: Call) -> Answer {
        let claim = self.claims[request].as_ref().unwrap();
        let retention = ticks(RETENTION);
        answer(match call {
            Call::Reserve => unreachable!("it has no claim to call with"),
            Call::Renew => self.store.renew(claim, ticks(LEASE)).await,
            Call::Complete => {
                let response = response(request);
                self.store.complete(claim, &response, retention).await
            }
            Call::Release => self.store.release(claim).await,
            Call::Abandon => self.store.abandon(claim, retention).await,
        })
    }
}

fn answer(result: Result<(), StoreError>) -> Answer {
    match result {
        Ok(()) => Answer::Ok,
        Err(error) => {
            assert_eq!(error.kind(), StoreErrorKind::LostClaim);
            Answer::LostClaim
        }
    }
}

fn nonce(request: usize) -> Nonce {
    Nonce::from_bytes([u8::try_from(request).unwrap(); 16])
}

fn response(request: usize) -> SavedResponse {
    let body = Bytes::from(request.to_string());
    SavedResponse::new(StatusCode::CREATED, HeaderMap::new(), body, None)
}

fn ticks(ticks: u8) -> Duration {
    TICK * u32::from(ticks)
}
