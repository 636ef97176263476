//! The application that the store protects.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::{sync::Notify, task::JoinHandle};
use tower::util::BoxCloneSyncService;
use tower_idempotency::{Idempotency, RequestBody};

use crate::{
    backends::Transaction,
    support::{Answer, Body, Runs, send},
};

pub type Handler =
    BoxCloneSyncService<Request<RequestBody<Body>>, Response<Full<Bytes>>, Infallible>;

pub type Protected = Idempotency<Handler>;

/// A handler that counts its runs, has its effect in the transaction where there is one, waits if told to, and then answers.
pub fn handler<F>(
    runs: &Runs,
    gate: Option<Arc<Gate>>,
    answer: impl Fn(usize) -> F + Clone + Send + Sync + 'static,
) -> Handler
where
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let runs = runs.clone();
    BoxCloneSyncService::new(tower::service_fn(
        move |request: Request<RequestBody<Body>>| {
            let (run, gate, answer) = (runs.add(), gate.clone(), answer.clone());
            async move {
                let transaction = Transaction::take(request.extensions());
                if let Some(gate) = &gate {
                    gate.started.notify_one();
                    gate.open.notified().await;
                }
                if let Some(transaction) = transaction {
                    transaction.write().await;
                }
                Ok(answer(run).await)
            }
        },
    ))
}

/// Holds a handler in the middle.
#[derive(Default)]
pub struct Gate {
    pub started: Notify,
    pub open: Notify,
}

pub async fn created(run: usize) -> Response<Full<Bytes>> {
    respond(201, format!("run {run}"))
}

pub fn respond(status: u16, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    Response::builder()
        .status(status)
        .body(Full::new(body.into()))
        .expect("a response")
}

/// Sends on a task of its own.
pub fn spawn(service: &Protected, request: Request<Body>) -> JoinHandle<Answer> {
    let service = service.clone();
    tokio::spawn(async move { send(&service, request).await })
}
