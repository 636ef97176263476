//! Clauses S1 to S8: what [`Steps`] keep of a run for the one that takes over.

use std::time::Duration;

use super::{
    Harness,
    case::{Case, LONG, SHORT, response, run_again, terms, terms_of},
};
use crate::{
    StoreError, StoreErrorKind,
    store::{Claim, Note, RecordState, Steps, Store},
};

/// Clause S1.
pub async fn notes_outlive_their_run(harness: &dyn Harness) {
    let case = Case::new(harness, "S1 notes_outlive_their_run");
    let all_bytes: Vec<u8> = (0..=255).collect();
    let notes = [
        Note::new("authorize", all_bytes),
        Note::new("", ""),
        Note::new("\u{e9}tape \0 'two'", "\0"),
        Note::new("three", "\u{1}\u{9}three"),
    ];
    let mut claim = case.acquire(&terms()).await;
    case.has_notes(&claim, &[]).await;
    for (count, note) in notes.iter().enumerate() {
        case.notes(&claim, note).await;
        // One that lapses, and one that is abandoned.
        if count % 2 == 0 {
            case.abandon(&claim).await;
        } else {
            case.ok("renew", case.store.renew(&claim, SHORT).await);
            harness.pass(SHORT * 2).await;
        }
        claim = case.acquire(&run_again()).await;
        let expected: Vec<_> = notes.iter().take(count + 1).collect();
        case.has_notes(&claim, &expected).await;
    }
}

/// Clause S2.
pub async fn the_first_note_of_a_name_stays(harness: &dyn Harness) {
    let case = Case::new(harness, "S2 the_first_note_of_a_name_stays");
    let (first, another) = (Note::new("pay", "1"), Note::new("pay", "22"));
    let claim = case.acquire(&terms()).await;
    for note in [&first, &first, &another] {
        case.notes(&claim, note).await;
    }
    case.has_notes(&claim, &[&first]).await;
    case.abandon(&claim).await;
    let second = case.acquire(&run_again()).await;
    case.notes(&second, &another).await;
    case.has_notes(&second, &[&first]).await;
}

/// Clause S3.
pub async fn notes_at_once_are_all_kept(harness: &dyn Harness) {
    let case = Case::new(harness, "S3 notes_at_once_are_all_kept");
    let notes: Vec<Note> = (0..16)
        .map(|number| Note::new(format!("step {number}"), "done"))
        .collect();
    let claim = case.acquire(&terms()).await;
    let running: Vec<_> = notes
        .iter()
        .map(|note| {
            let (store, claim, note) = (harness.store(), claim.clone(), note.clone());
            tokio::spawn(async move { steps_of(&*store)?.note(&claim, &note).await })
        })
        .collect();
    for call in running {
        match call.await {
            Ok(noted) => case.ok("note", noted),
            Err(error) => case.broken("no panic", &error),
        }
    }
    case.has_notes(&claim, &notes.iter().collect::<Vec<_>>())
        .await;
}

/// Clause S4.
pub async fn a_late_owner_notes_nothing(harness: &dyn Harness) {
    let case = Case::new(harness, "S4 a_late_owner_notes_nothing");
    let note = Note::new("first", "1");
    let late = case.acquire(&terms_of(SHORT, LONG)).await;
    case.notes(&late, &note).await;
    harness.pass(SHORT * 2).await;
    let claim = case.acquire(&run_again()).await;
    case.keeps_no_notes_of(&late).await;
    case.has_notes(&claim, &[&note]).await;
}

/// Clause S5.
pub async fn an_unsettled_claim_may_note(harness: &dyn Harness) {
    let case = Case::new(harness, "S5 an_unsettled_claim_may_note");
    let (lapsed, abandoned) = (case.on_random_key(), case.on_random_key());
    let note = Note::new("late", "1");
    let claim = lapsed.acquire(&terms_of(SHORT, LONG)).await;
    harness.pass(SHORT * 2).await;
    lapsed.notes(&claim, &note).await;
    let second = lapsed.acquire(&run_again()).await;
    lapsed.has_notes(&second, &[&note]).await;

    let claim = abandoned.acquire(&terms()).await;
    abandoned.abandon(&claim).await;
    abandoned.notes(&claim, &note).await;
    abandoned.is_unknown().await;
    let second = abandoned.acquire(&run_again()).await;
    abandoned.has_notes(&second, &[&note]).await;
}

/// Clause S6.
pub async fn notes_end_with_their_run(harness: &dyn Harness) {
    let case = Case::new(harness, "S6 notes_end_with_their_run");
    let note = Note::new("first", "1");
    let [completed, released, forgotten] = [(); 3].map(|()| case.on_random_key());

    let claim = completed.acquire(&terms()).await;
    completed.notes(&claim, &note).await;
    completed
        .complete_for(&claim, &response(b"first"), SHORT)
        .await;
    completed.keeps_no_notes_of(&claim).await;

    let claim = released.acquire(&terms()).await;
    released.notes(&claim, &note).await;
    released.release(&claim).await;
    released.keeps_no_notes_of(&claim).await;

    let claim = forgotten.acquire(&terms()).await;
    forgotten.notes(&claim, &note).await;
    forgotten.forget().await;
    forgotten.keeps_no_notes_of(&claim).await;

    let (expired, claim, moment) = case.noted_for_a_moment(&note).await;
    harness.pass(moment * 2).await;
    expired.keeps_no_notes_of(&claim).await;

    for case in [&completed, &released, &forgotten, &expired] {
        for terms in [terms(), run_again()] {
            let claim = case.acquire(&terms).await;
            case.has_notes(&claim, &[]).await;
            case.release(&claim).await;
        }
    }
}

/// Clause S7.
pub async fn noting_moves_no_time(harness: &dyn Harness) {
    let case = Case::new(harness, "S7 noting_moves_no_time");
    let note = Note::new("first", "1");
    let claim = case.acquire(&terms()).await;
    let before = case.times().await;
    case.notes(&claim, &note).await;
    let after = case.times().await;
    case.check(before.0 >= after.0 && before.1 >= after.1, before, &after);
    // No less either, beyond what a slow machine takes for it.
    let still_there = after.0 > LONG / 2 && after.1 > LONG + LONG / 2;
    case.check(still_there, before, &after);

    let (gone, _, moment) = case.noted_for_a_moment(&note).await;
    harness.pass(moment * 2).await;
    gone.is_free().await;
}

/// Clause S8.
pub async fn large_notes_are_kept(harness: &dyn Harness) {
    let case = Case::new(harness, "S8 large_notes_are_kept");
    let bytes: Vec<u8> = (0..=250).cycle().take(Note::MAX_VALUE).collect();
    let name = |first: char| format!("{first}{}", "n".repeat(Note::MAX_NAME - 1));
    let rest = Note::MAX_TOTAL - 3 * (Note::MAX_VALUE + Note::MAX_NAME) - Note::MAX_NAME;
    let last: Vec<u8> = bytes.iter().copied().take(rest).collect();
    let notes: Vec<Note> = "abc"
        .chars()
        .map(|first| Note::new(name(first), bytes.clone()))
        .chain([Note::new(name('d'), last)])
        .collect();
    let claim = case.acquire(&terms()).await;
    for note in &notes {
        case.notes(&claim, note).await;
    }
    case.abandon(&claim).await;
    let second = case.acquire(&run_again()).await;
    case.has_notes(&second, &notes.iter().collect::<Vec<_>>())
        .await;
    let response = response(b"done");
    case.complete(&second, &response).await;
    case.is_replayed(&response).await;
}

impl Case {
    async fn notes(&self, claim: &Claim, note: &Note) {
        self.ok("note", self.try_note(claim, note).await);
    }

    async fn try_note(&self, claim: &Claim, note: &Note) -> Result<(), StoreError> {
        let steps = self.ok("steps", steps_of(&*self.store));
        steps.note(claim, note).await
    }

    /// The note of a claim on another key, whose lease and retention are this moment each. On a slow machine a note comes too late
    /// for a short one.
    async fn noted_for_a_moment(&self, note: &Note) -> (Self, Claim, Duration) {
        let mut moment = SHORT;
        loop {
            let case = self.on_random_key();
            let claim = case.acquire(&terms_of(moment, moment)).await;
            match case.try_note(&claim, note).await {
                Err(error) if error.kind() == StoreErrorKind::LostClaim && moment < SHORT * 20 => {
                    moment *= 5;
                }
                noted => {
                    case.ok("note", noted);
                    return (case, claim, moment);
                }
            }
        }
    }

    async fn has_notes(&self, claim: &Claim, expected: &[&Note]) {
        let found = self.ok("steps", steps_of(&*self.store)).notes(claim).await;
        let mut found = self.ok("notes", found);
        found.sort_by(|one, other| one.name.cmp(&other.name));
        let mut expected = expected.to_vec();
        expected.sort_by(|one, other| one.name.cmp(&other.name));
        let are_equal = found.iter().eq(expected.iter().copied());
        let short = |note: &Note| (note.name.clone(), note.value.len());
        let expected: Vec<_> = expected.into_iter().map(short).collect();
        let found: Vec<_> = found.iter().map(short).collect();
        self.check(are_equal, expected, &found);
    }

    async fn keeps_no_notes_of(&self, claim: &Claim) {
        let steps = self.ok("steps", steps_of(&*self.store));
        let noted = steps.note(claim, &Note::new("late", "2")).await;
        self.lost("note", noted);
        self.lost("notes", steps.notes(claim).await.map(drop));
    }

    /// What is left of the lease, and until the expiry.
    async fn times(&self) -> (Duration, Duration) {
        let record = self.inspect().await;
        match record
            .as_ref()
            .map(|record| (&record.state, record.expires_in))
        {
            Some((RecordState::InFlight { lease_left }, expires_in)) => (*lease_left, expires_in),
            _ => self.broken("a running record", &record),
        }
    }
}

fn steps_of(store: &dyn Store) -> Result<&dyn Steps, StoreError> {
    let missing = || StoreError::new(StoreErrorKind::Other, "the store has no steps");
    store.steps().ok_or_else(missing)
}
