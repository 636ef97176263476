//! The layer without a framework: hyper serves, tower composes, and a lease store keeps the keys.
//!
//! Run with `cargo run --example hyper`
//!
//! ```sh
//! curl -i localhost:3000/transfers -H 'X-Account: alice' -H 'Idempotency-Key: 0b2f6a3e-7f0e-4b07-9a53-3b1a52d8a7c4' -d 10
//! # HTTP/1.1 201 Created
//! # transfer 1 of alice: 10
//! #
//! # The same line again: the same answer, with `idempotent-replayed: true`. Without the key, 400; without the account, 403.
//! ```

use std::{
    convert::Infallible,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower_idempotency::{IdempotencyContext, IdempotencyLayer, MemoryStore, RequestBody, ScopeBy};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    // Right where a proxy in front sets this header, and removes it from what clients send.
    let account = ScopeBy::trusted_header(HeaderName::from_static("x-account"));
    // Keys are lost when this process ends. `sqlite::LeaseStore` keeps them, and is used in the same way.
    let idempotency = IdempotencyLayer::new(MemoryStore::new(), account).require_key();
    let transfers = Arc::new(AtomicU64::new(0));
    let service = ServiceBuilder::new()
        .layer(idempotency)
        .service_fn(move |request| transfer(request, Arc::clone(&transfers)));

    let address = std::env::var("ADDR").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .serve_connection(
                TokioIo::new(stream),
                TowerToHyperService::new(service.clone()),
            );
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                eprintln!("a connection broke: {error}");
            }
        });
    }
}

/// The layer has collected the body for its fingerprint; here it comes out again.
async fn transfer(
    request: Request<RequestBody<Incoming>>,
    transfers: Arc<AtomicU64>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let account = match request.extensions().get::<IdempotencyContext>() {
        Some(context) => context.scope().as_bytes().escape_ascii().to_string(),
        // The route requires a key, so only safe methods come here without a context.
        None => {
            return Ok(response(
                StatusCode::METHOD_NOT_ALLOWED,
                "POST a transfer\n",
            ));
        }
    };
    let Ok(body) = request.into_body().collect().await else {
        return Ok(response(StatusCode::BAD_REQUEST, "the body broke off\n"));
    };
    let amount = body.to_bytes().escape_ascii().to_string();
    let transfer = transfers.fetch_add(1, Ordering::Relaxed) + 1;
    let text = format!("transfer {transfer} of {account}: {amount}\n");
    Ok(response(StatusCode::CREATED, text))
}

fn response(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response
}
