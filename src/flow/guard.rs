use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};

use super::{background::Settlements, reserve::Told, store_call::LateCalls, waiters::Waiters};
use crate::{
    FingerprintBy, IdempotencyContext, Outcome, Rejection, RejectionKind, ResponseBody,
    SavedResponse,
    config::Settings,
    grpc::Protocol,
    key_by::Source,
    metric,
    store::{Store, StoreKind},
};

/// All that a wrapped service needs besides the service: the store, the settings, and what clones of the layer share.
pub(crate) struct Guard {
    pub(super) store: Arc<dyn Store>,
    pub(super) kind: StoreKind,
    pub(super) shared: Arc<Shared>,
    pub(super) fingerprint: FingerprintBy,
    pub(super) call_limit: Duration,
    pub(crate) settings: Settings,
}

/// What the clones of a layer share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(super) waiters: Waiters,
    pub(super) settlements: Settlements,
    pub(super) late_calls: LateCalls,
}

impl Shared {
    /// Whether the store has left so much unanswered that no more is to be kept in memory for it.
    pub(super) fn is_overdue(&self, settings: &Settings) -> bool {
        self.settlements.are_full(settings) || self.late_calls.are_too_many(settings)
    }
}

impl Guard {
    pub(crate) fn new(store: Arc<dyn Store>, shared: Arc<Shared>, settings: Settings) -> Self {
        metric::describe();
        let kind = store.kind();
        Self {
            kind,
            fingerprint: settings.fingerprint_by(),
            call_limit: settings.store_call_limit(kind),
            store,
            shared,
            settings,
        }
    }

    /// What the request speaks, if the layer has anything to do with it. Cheap, because it is asked of every request.
    pub(crate) fn engages<B>(&self, request: &Request<B>) -> Option<Protocol> {
        let settings = &self.settings;
        if !settings.methods.contains(request.method()) {
            return None;
        }
        if let Source::Header(name) = &settings.key.0
            && !settings.key_required
            && !request.headers().contains_key(name)
        {
            return None;
        }
        if request.extensions().get::<IdempotencyContext>().is_some() {
            return None;
        }
        let protocol = Protocol::of(request.headers());
        let engages = match protocol {
            Protocol::Http => true,
            // Whether the path is a unary call's is asked later, where a panic of the closure is caught.
            Protocol::Grpc => settings.grpc_unary.is_some(),
            Protocol::GrpcLike => false,
        };
        engages.then_some(protocol)
    }

    /// The answer to a request without a run of the handler.
    pub(super) fn tell<R>(&self, protocol: Protocol, told: Told) -> Response<ResponseBody<R>> {
        match told {
            Told::Replay(saved, expires_in) => {
                let mut response = self.replay(protocol, &saved);
                self.tell_expiry(&mut response, expires_in);
                response
            }
            Told::InFlight { retry_after } => {
                self.refuse(protocol, Rejection::in_flight(retry_after))
            }
            Told::Refusal(kind) => self.refuse(protocol, kind),
        }
    }

    pub(super) fn refuse<R>(
        &self,
        protocol: Protocol,
        rejection: impl Into<Rejection>,
    ) -> Response<ResponseBody<R>> {
        let rejection = rejection.into();
        let response = match protocol {
            Protocol::Http | Protocol::GrpcLike => self.problem(&rejection),
            Protocol::Grpc => rejection.to_grpc_response(),
        };
        let mut response = response.map(ResponseBody::collected);
        let (kind, extensions) = (rejection.kind(), response.extensions_mut());
        extensions.insert(kind);
        extensions.insert(Outcome::Refused(kind));
        response
    }

    fn problem(&self, rejection: &Rejection) -> Response<Bytes> {
        let custom = self.settings.rejection.as_ref().and_then(|response| {
            // A panic here must not turn a 409 into a 500, which invites another key.
            catch_unwind(AssertUnwindSafe(|| response(rejection))).ok()
        });
        custom.unwrap_or_else(|| rejection.to_response())
    }

    pub(super) fn tells_expiry(&self) -> bool {
        self.settings.expiry_header.is_some()
    }

    /// Tells how long the key is kept yet, if the layer was told to.
    pub(super) fn tell_expiry<R>(&self, response: &mut Response<R>, expires_in: Duration) {
        if let Some(name) = &self.settings.expiry_header {
            // Rounded down: a client must not believe in a key that is gone.
            let seconds = HeaderValue::from(expires_in.as_secs());
            // A head that is full goes without.
            drop(response.headers_mut().try_insert(name.clone(), seconds));
        }
    }

    fn replay<R>(&self, protocol: Protocol, saved: &SavedResponse) -> Response<ResponseBody<R>> {
        let Some(kept) = saved.kept() else {
            return self.refuse(protocol, RejectionKind::ResponseNotKept);
        };
        let mut response = Response::new(ResponseBody::collected(kept.collected()));
        *response.status_mut() = kept.status;
        *response.headers_mut() = kept.headers.clone();
        response.headers_mut().insert(
            self.settings.replay_marker.clone(),
            HeaderValue::from_static("true"),
        );
        response.extensions_mut().insert(Outcome::Replayed);
        response
    }
}

impl From<RejectionKind> for Rejection {
    fn from(kind: RejectionKind) -> Self {
        Self::new(kind)
    }
}
