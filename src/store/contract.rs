use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{Claim, Record, Reservation, Steps, Terms};
use crate::{Fingerprint, Identity, RecordKey, SavedResponse, StoreError, Tag};

/// Where records live: the one trait between the layer and a backend.
///
/// It is object-safe, and implemented for `Arc` and `Box` of a store. The stores of this crate are no special case:
/// whatever they return can be made through public constructors.
///
/// # Words
///
/// A *record* holds a fingerprint, the nonce, attempt and fence of its last claim, and how it stands:
/// *running* until its claim is settled, then *completed* with a response, or *abandoned*.
/// A *lapsed* claim is a running one whose lease is over. A *lost* record is one that vanished under its claim, by
/// expiry or an operator, and that nobody claimed since. *Now* is the backend's clock: callers pass durations only.
/// At the very instant of its expiry a record is expired, and at the very end of its lease a claim is lapsed.
///
/// # Contract
///
/// Each clause has a check of the same name in `conformance`, the kit that a store's own tests should run.
/// *All* clauses bind every store; *lease* and *transaction* ones bind a store of that [kind](Self::kind).
///
/// ## Reserving
///
/// What [`reserve`](Self::reserve) finds, it finds and changes in one atomic step, in this order: absent or expired,
/// another fingerprint, completed, its own running claim, another's running claim, a run without an outcome.
///
/// 1. *all* `a_new_key_is_acquired`: where no unexpired record is, the key is claimed: attempt 1, with the key,
///    fingerprint and nonce that were passed.
/// 2. *all* `one_of_many_claimers_acquires`: of any number of calls at once, one acquires the key. The others are `InFlight`
///    until it is settled.
/// 3. *all* `every_byte_of_a_key_counts`: keys that differ in one bit, or in a last byte that is blank or zero,
///    have records of their own.
/// 4. *all* `a_running_key_is_in_flight`: an equal request in mid-run is told to ask again later than now.
/// 5. *all* `another_request_is_a_mismatch`: a request with another fingerprint gets the recorded one, and changes nothing,
///    while the first runs (a transaction store in another process: `InFlight`, or `Unavailable` where it can't tell whose lock it waits for) as well as after it completed.
/// 6. *lease* `another_request_takes_nothing_over`: the same for lapsed and abandoned claims, also under
///    [`RunAgain`](super::Takeover::RunAgain).
/// 7. *all* `a_completed_key_is_replayed`: an equal request gets the response, as often as it comes, under any nonce.
/// 8. *lease* `a_repeated_reserve_is_the_same_claim`: with the nonce of the running claim, `reserve` returns that claim
///    with its attempt and fence, and a lease that counts anew.
/// 9. *transaction* `a_repeated_reserve_is_in_flight`: a claim is handed out once.
/// 10. *lease* `a_lapsed_claim_is_unknown_under_refuse`: [`Refuse`](super::Takeover::Refuse) answers `Unknown`.
/// 11. *lease* `a_lapsed_claim_is_taken_over_under_run_again`: `RunAgain` acquires the key with the next attempt number.
/// 12. *all* `the_fence_only_grows`: from claim to claim of a key. At least by one where the old record is there,
///     and to no less than the clock in microseconds, so that it also grows over a record that is gone.
/// 13. *lease* `the_fence_grows_with_a_takeover`: whatever the clock says.
///
/// ## Settling
///
/// A settlement is compared and set on the nonce. The same one repeated is `Ok` and changes nothing,
/// so that callers may retry; another one is [`LostClaim`](crate::StoreErrorKind::LostClaim) and changes nothing.
///
/// 14. *all* `responses_are_replayed_exactly`: status, headers with their bytes, order and repetition, body, trailers;
///     a tombstone stays one.
/// 15. *all* `a_repeated_complete_changes_nothing`: the first response and its retention stay.
/// 16. *all* `nothing_undoes_a_completion`: whatever `release` and `abandon` answer (on a lease store, like `renew`, `LostClaim`).
/// 17. *all* `a_released_key_is_free`: a retry is attempt 1. Releasing again is `Ok`.
/// 18. *lease* `an_abandoned_key_is_unknown`: at once, whatever was left of the lease; `RunAgain` takes it over at once.
///     Abandoning again is `Ok`.
/// 19. *lease* `an_abandoned_claim_is_settled`: its `renew`, `complete` and `release` are `LostClaim`.
/// 20. *transaction* `an_abandoned_run_is_rolled_back`: a retry is attempt 1. Abandoning or releasing again is `Ok`.
/// 21. *transaction* `a_rolled_back_claim_cant_complete`: [`RolledBack`](crate::StoreErrorKind::RolledBack), and the key is free.
/// 22. *transaction* `renewing_a_transaction_is_ok`: and nothing else, a transaction has no lease.
///
/// ## Claims that outlive their lease or their record
///
/// 23. *lease* `a_late_owner_changes_nothing`: after a takeover each call with the old claim is `LostClaim`, while the new
///     one runs as well as after it completed.
/// 24. *lease* `a_lapsed_claim_may_renew`: if nobody took over.
/// 25. *lease* `a_lapsed_claim_may_settle`: complete, release or abandon, if nobody took over.
/// 26. *lease* `a_lost_record_is_completed`: `complete` brings the record back.
/// 27. *lease* `a_lost_record_is_abandoned`: `abandon` brings it back too, as the run's outcome is unknown all the same.
/// 28. *lease* `releasing_a_lost_record_is_ok`: and leaves no record. `renew` is `LostClaim`.
///
/// ## Time
///
/// 29. *all* `an_expired_record_is_absent`: for every call, purged or not.
/// 30. *all* `retention_counts_from_completion`: with what `complete` got, not what `reserve` got; a replay tells what is left.
/// 31. *lease* `an_unsettled_record_outlives_its_lease`: by the retention that `reserve` got.
/// 32. *lease* `renewing_moves_lease_and_expiry`: the lease then ends, and the record expires, that much later or earlier.
/// 33. *lease* `abandoning_sets_the_expiry`: with the retention that `abandon` got, from now.
///
/// ## Operating
///
/// 34. *all* `a_completed_record_can_be_inspected`: and an absent one is none. What a transaction store tells of a running
///     claim is its own affair.
/// 35. *lease* `an_unsettled_record_can_be_inspected`: running with what is left of its lease; lapsed and abandoned as `Unknown`.
/// 36. *all* `a_forgotten_key_is_free`: `forget` removes a record in any state, and tells whether an unexpired one was there.
/// 37. *all* `purging_keeps_responses`: `purge_expired` removes at most `limit` records, and none that has not expired.
/// 38. *lease* `purging_keeps_claims`: running, lapsed or abandoned, until they expire.
/// 39. *all* `a_ping_is_answered`.
/// 40. *all* `fingerprints_are_stable`: equal identities have equal fingerprints, [`fingerprint_as`](Self::fingerprint_as)
///     computes them by their tag, and another body has another one.
/// 41. *lease* `a_lease_store_says_so`, and
/// 42. *transaction* `a_transaction_store_says_so`: by its [kind](Self::kind).
///
/// # Cancel safety
///
/// None is asked of a store: the layer never drops a call before its end, also after it stopped waiting for the answer.
/// (Between two polls a call may move to another task.) Others who call a store should do the same: whether a dropped call
/// had its effect is not known, and it may leave a connection in the middle of a statement.
///
/// # Errors
///
/// The [kind](crate::StoreErrorKind) tells the layer what to do. Each call can fail with
/// [`Unavailable`](crate::StoreErrorKind::Unavailable) and [`Other`](crate::StoreErrorKind::Other), after which it may be
/// repeated; what else it can fail with is told below.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Claims the key on these terms, or tells why it can't be claimed (clauses 1 to 13).
    ///
    /// On a transaction store this opens the transaction, and the claim carries it as an
    /// [attachment](Claim::with_attachment).
    ///
    /// # Errors
    ///
    /// [`Full`](crate::StoreErrorKind::Full) if a new record has no room. A key that is taken is no error.
    async fn reserve(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError>;

    /// Moves the end of the claim's lease to `lease` from now, and the record's expiry along (clauses 22, 24, 32).
    ///
    /// # Errors
    ///
    /// [`LostClaim`](crate::StoreErrorKind::LostClaim) on a lease store, if the record is not this claim's running one.
    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError>;

    /// Saves the response; from now on, for `retention`, the key is answered from the record (clauses 14 to 16, 25, 26, 30).
    ///
    /// On a transaction store this commits.
    ///
    /// # Errors
    ///
    /// [`LostClaim`](crate::StoreErrorKind::LostClaim) if the key is another claim's, or this one was settled otherwise.
    /// A transaction store also answers
    /// [`RolledBack`](crate::StoreErrorKind::RolledBack) if nothing was persisted,
    /// [`Conflict`](crate::StoreErrorKind::Conflict) if that is so because the transaction lost against another one,
    /// [`Misused`](crate::StoreErrorKind::Misused) if the handler still has the transaction or ended it, and
    /// [`OutcomeUnknown`](crate::StoreErrorKind::OutcomeUnknown) if it can't tell now: then the call is to be repeated,
    /// and writes nothing.
    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError>;

    /// Gives the key back: nothing happened, a retry runs (clauses 17, 20, 25, 28).
    ///
    /// On a transaction store this rolls back.
    ///
    /// # Errors
    ///
    /// [`LostClaim`](crate::StoreErrorKind::LostClaim) if the key is another claim's, or this one was settled otherwise.
    /// A transaction store may also answer [`Conflict`](crate::StoreErrorKind::Conflict): it has rolled back, and found that
    /// the transaction had lost against another one before, so that what the handler answered rests on nothing.
    async fn release(&self, claim: &Claim) -> Result<(), StoreError>;

    /// Ends the claim without an outcome: whether anything happened is unknown (clauses 18 to 20, 25, 27, 33).
    ///
    /// On a transaction store this rolls back, so that it is known: nothing did.
    ///
    /// # Errors
    ///
    /// [`LostClaim`](crate::StoreErrorKind::LostClaim) if the key is another claim's, or this one was settled otherwise.
    /// A transaction store may also answer [`Conflict`](crate::StoreErrorKind::Conflict), as to [`release`](Self::release).
    /// It makes no difference for a claim that was [interrupted](Claim::interrupted): nothing was answered.
    async fn abandon(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError>;

    /// What is recorded under the key, if it has not expired (clauses 34, 35).
    ///
    /// # Errors
    ///
    /// Only those of every call.
    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError>;

    /// Removes the record, whatever its state, and tells whether there was an unexpired one (clause 36).
    ///
    /// An operator's decision: the next request under the key runs, whatever an earlier one did.
    ///
    /// # Errors
    ///
    /// Only those of every call.
    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError>;

    /// Removes at most `limit` expired records and tells how many (clauses 37, 38).
    ///
    /// It only saves room: an expired record counts as absent anyway. A [`Purger`](crate::Purger) calls it at intervals.
    ///
    /// # Errors
    ///
    /// Only those of every call.
    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError>;

    /// Tells whether the backend answers (clause 39), for health checks.
    ///
    /// # Errors
    ///
    /// Only those of every call.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Which promise this store makes (clauses 41, 42). Always the same.
    fn kind(&self) -> StoreKind;

    /// Turns an identity into the fingerprint that this store compares (clause 40).
    ///
    /// A store may compute one of its own with a secret key, as a keyed hash over the tag and digest of
    /// [`Fingerprint::of`]: a table that leaks then tells nothing about the bodies. It gives it a tag of its own for each of ours
    /// (from 0x8000, see [`Tag::from_u16`]), and overrides [`fingerprint_as`](Self::fingerprint_as) too: a record in a form that
    /// that can't compute is a 503 for its retries.
    fn fingerprint(&self, identity: &Identity<'_>) -> Fingerprint {
        Fingerprint::of(identity)
    }

    /// The fingerprint of the same request in the form of a stored one, if it can be computed (clause 40).
    ///
    /// The layer asks for it when `reserve` answered with a fingerprint of another form, as after a change of mode.
    fn fingerprint_as(&self, identity: &Identity<'_>, tag: Tag) -> Option<Fingerprint> {
        Fingerprint::in_form(identity, tag)
    }

    /// What keeps the notes of a run's steps, if the store can (by default none). Always the same.
    ///
    /// A transaction store has none: what is written through its transaction is rolled back together, so that there is nothing for
    /// another run to go on after.
    fn steps(&self) -> Option<&dyn Steps> {
        None
    }
}

/// The two kinds of store, which differ in what a crash leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreKind {
    /// The claim is durable before the handler runs, and the response is saved after it.
    Lease,
    /// Key, business writes and response commit in one transaction.
    Transaction,
}

macro_rules! forward {
    ($($pointer:ident),*) => {$(
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<T: Store + ?Sized> Store for $pointer<T> {
            async fn reserve(&self, key: &RecordKey, fingerprint: &Fingerprint, terms: &Terms) -> Result<Reservation, StoreError> {
                (**self).reserve(key, fingerprint, terms).await
            }
            async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
                (**self).renew(claim, lease).await
            }
            async fn complete(&self, claim: &Claim, response: &SavedResponse, retention: Duration) -> Result<(), StoreError> {
                (**self).complete(claim, response, retention).await
            }
            async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
                (**self).release(claim).await
            }
            async fn abandon(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
                (**self).abandon(claim, retention).await
            }
            async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
                (**self).inspect(key).await
            }
            async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
                (**self).forget(key).await
            }
            async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
                (**self).purge_expired(limit).await
            }
            async fn ping(&self) -> Result<(), StoreError> {
                (**self).ping().await
            }
            fn kind(&self) -> StoreKind {
                (**self).kind()
            }
            fn fingerprint(&self, identity: &Identity<'_>) -> Fingerprint {
                (**self).fingerprint(identity)
            }
            fn fingerprint_as(&self, identity: &Identity<'_>, tag: Tag) -> Option<Fingerprint> {
                (**self).fingerprint_as(identity, tag)
            }
            fn steps(&self) -> Option<&dyn Steps> {
                (**self).steps()
            }
        }
    )*};
}

forward!(Arc, Box);
