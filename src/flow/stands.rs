use std::sync::Arc;

use super::{
    Guard,
    report::Report,
    reserve::{Told, in_form_of},
    store_call::inspect,
    subject::Subject,
};
use crate::{
    RejectionKind, StoreError,
    store::{RecordState, Takeover},
};

/// How a request's key stands.
pub(super) enum Stands {
    Running,
    Told(Told),
    /// Nothing is recorded, or a run that may be taken over.
    Free,
}

/// What the record says to a request, which claims nothing by asking.
pub(super) async fn stands(
    guard: &Arc<Guard>,
    subject: &Subject,
    report: &mut Report,
) -> Result<Stands, StoreError> {
    let asked = report.now();
    let record = inspect(guard, subject.record_key).await;
    report.waited_for_store(asked);
    let Some(record) = record? else {
        return Ok(Stands::Free);
    };
    if let Err(refusal) = in_form_of(guard, subject, &record.fingerprint) {
        return Ok(Stands::Told(Told::Refusal(refusal)));
    }
    Ok(match (record.state, guard.settings.takeover) {
        (RecordState::InFlight { .. }, _) => Stands::Running,
        (RecordState::Completed(response), _) => {
            Stands::Told(Told::Replay(response, record.expires_in))
        }
        (RecordState::Unknown, Takeover::Refuse) => {
            Stands::Told(Told::Refusal(RejectionKind::OutcomeUnknown))
        }
        (RecordState::Unknown, Takeover::RunAgain) => Stands::Free,
    })
}
