use std::{
    mem,
    pin::{Pin, pin},
    sync::Arc,
};

use http::{Request, Response};
use http_body::Body;
use tokio::{runtime::Handle, time::Instant};
use tower_service::Service;

use super::{
    Guard, background,
    handler::Handler,
    limit::limited,
    notes::Notes,
    renewal::Renewal,
    report::Report,
    reserve::Claimed,
    retry::{Answer, Conflict},
    settle::{Settled, Settlement},
    subject::Subject,
    unwind::{Panicked, catch},
};
use crate::{
    IdempotencyContext, Outcome, RejectionKind, RequestBody,
    drain::DrainToken,
    event,
    grpc::Protocol,
    metric::{self, Gauged},
    store::{Claim, StoreKind},
};

/// One run of the handler under a claim. Dropped before it is settled, it settles itself in the background, by its [`Stage`].
pub(super) struct Run {
    pub(super) guard: Arc<Guard>,
    pub(super) claim: Arc<Claim>,
    pub(super) protected: bool,
    pub(super) protocol: Protocol,
    pub(super) context: IdempotencyContext,
    pub(super) asked: Instant,
    stage: Stage,
    renewal: Option<Renewal>,
    /// Kept, because a run may be dropped outside of its runtime.
    runtime: Handle,
    _counted: DrainToken,
    _gauged: Gauged,
}

/// How far a run has come, and so what becomes of its claim if it is dropped there.
enum Stage {
    /// The handler has not started: released.
    Claimed,
    /// It may have done anything: abandoned.
    Running,
    /// It has answered: settled as was decided, for a finished effect must not be abandoned.
    Settling(Settlement),
    Settled,
}

/// What became of the handler: how to settle the claim, and what its caller gets if that works.
pub(super) struct Ended<R, E> {
    pub(super) settlement: Settlement,
    pub(super) reply: Answer<R, E>,
    pub(super) end: HandlerEnd,
}

/// How the handler ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HandlerEnd {
    Answered,
    /// It answered that its transaction lost against another one.
    Conflicted,
    /// It was dropped before it answered.
    Interrupted,
}

impl Run {
    /// A run, and the request that the handler gets.
    pub(super) fn new<B>(
        guard: &Arc<Guard>,
        claimed: Claimed,
        subject: Subject,
        body: Option<B>,
    ) -> (Self, Request<RequestBody<B>>) {
        let Claimed {
            claim,
            asked,
            protected,
        } = claimed;
        let Subject {
            protocol,
            key,
            scope,
            mut parts,
            collected,
            ..
        } = subject;
        let claim = Arc::new(claim);
        let notes = Notes::of_run(guard, &claim, protected);
        let context = IdempotencyContext::of_run(key, scope, &claim, protected, notes);
        if !protected {
            event::unprotected(claim.key());
        }
        let renewal = protected.then(|| Renewal::start(guard, &claim, &context, asked));
        let run = Self {
            guard: Arc::clone(guard),
            claim,
            protected,
            protocol,
            context,
            asked,
            stage: Stage::Claimed,
            renewal: renewal.flatten(),
            runtime: Handle::current(),
            _counted: guard.settings.drain.token(),
            _gauged: Gauged::one(metric::IN_FLIGHT_RUNS),
        };
        // Cloned when there is a run that gives the claim back, should the clone panic.
        parts.extensions.extend(run.claim.attachments().clone());
        parts.extensions.insert(run.context.clone());
        let body = match body {
            Some(body) => RequestBody::streamed(body),
            None => RequestBody::collected(collected.unwrap_or_default()),
        };
        (run, Request::from_parts(*parts, body))
    }

    /// Runs the handler once, settles the claim and only then answers.
    pub(super) async fn answer<S, B, R>(
        &mut self,
        handler: Pin<Box<Handler<S, Request<RequestBody<B>>>>>,
        report: &mut Report,
    ) -> Result<Answer<R, S::Error>, Conflict<S::Error>>
    where
        S: Service<Request<RequestBody<B>>, Response = Response<R>>,
        R: Body,
    {
        self.stage = Stage::Running;
        report.runs(&self.claim);
        if self.context.is_takeover() {
            event::takeover(self.claim.key());
        }
        let started = report.now();
        let Ended {
            settlement,
            mut reply,
            end,
        } = self.run(handler).await;
        self.context.notes().close();
        report.ran(started);
        drop(self.renewal.take());
        if end == HandlerEnd::Interrupted {
            Arc::make_mut(&mut self.claim).set_interrupted();
        }
        self.stage = Stage::Settling(settlement.clone());
        report.comes_to(settlement.outcome());
        let undone = matches!(settlement, Settlement::Release);
        let asked = report.now();
        let told = self.guard.tells_expiry().then(Instant::now);
        let settled = self.settle(settlement).await;
        report.waited_for_store(asked);
        self.stage = Stage::Settled;
        self.guard.shared.waiters.wake(self.claim.key());
        Ok(match settled {
            Settled::Conflict => {
                return Err(Conflict::new(&self.guard, self.protocol, reply.err()));
            }
            Settled::AsMeant(_) if end == HandlerEnd::Conflicted => {
                let conflict = Conflict::new(&self.guard, self.protocol, reply.err());
                return Err(match undone {
                    true => conflict,
                    false => conflict.after_a_step(),
                });
            }
            Settled::AsMeant(outcome) => {
                report.comes_to(outcome);
                // Another answer than the handler's says by itself what it is.
                if end == HandlerEnd::Answered
                    && let Ok(response) = &mut reply
                {
                    response.extensions_mut().insert(outcome);
                    if let Some(told) = told
                        && matches!(outcome, Outcome::Saved | Outcome::NotKept)
                    {
                        // The retention counts from some moment since then.
                        let left = self.guard.settings.retention.saturating_sub(told.elapsed());
                        self.guard.tell_expiry(response, left);
                    }
                }
                reply
            }
            // The wrapped service's own error reaches the caller unchanged, whatever became of the claim.
            Settled::Otherwise(told) => reply.map(|_| self.guard.tell(self.protocol, told)),
        })
    }

    async fn run<S, B, R>(
        &self,
        mut handler: Pin<Box<Handler<S, Request<RequestBody<B>>>>>,
    ) -> Ended<R, S::Error>
    where
        S: Service<Request<RequestBody<B>>, Response = Response<R>>,
        R: Body,
    {
        let limit = self.guard.settings.run_limit;
        let response = match limited(limit, pin!(catch(handler.as_mut()))).await {
            Ok(Ok(Ok(response))) => response,
            Ok(Ok(Err(error))) => {
                return Ended {
                    settlement: Settlement::Abandon,
                    reply: Err(error),
                    end: HandlerEnd::Answered,
                };
            }
            Ok(Err(Panicked)) => return self.failed(RejectionKind::HandlerFailed),
            Err(_elapsed) => return self.failed(RejectionKind::RunLimit),
        };
        // It may panic as it goes, too.
        if catch(async move { drop(handler) }).await.is_err() {
            return self.failed(RejectionKind::HandlerFailed);
        }
        self.judge(response).await
    }

    /// The handler was dropped before it answered.
    pub(super) fn failed<R, E>(&self, kind: RejectionKind) -> Ended<R, E> {
        Ended {
            settlement: Settlement::Abandon,
            reply: Ok(self.guard.refuse(self.protocol, kind)),
            end: HandlerEnd::Interrupted,
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.protected {
            return;
        }
        let _inside = self.runtime.enter();
        match mem::replace(&mut self.stage, Stage::Settled) {
            Stage::Claimed => background::release(&self.guard, Arc::clone(&self.claim)),
            Stage::Running => {
                self.context.notes().close();
                Arc::make_mut(&mut self.claim).set_interrupted();
                let (claim, context) = (Arc::clone(&self.claim), self.context.clone());
                background::abandon(&self.guard, claim, context);
            }
            Stage::Settling(settlement) if self.guard.kind == StoreKind::Lease => {
                self.settle_later(settlement);
            }
            // The call that is under way ends the transaction by itself.
            Stage::Settling(_) | Stage::Settled => {}
        }
    }
}
