use std::{env, sync::Arc, time::Duration};

use tokio::{net::TcpListener, time};
use tower_idempotency::{
    Drain, IdempotencyLayer, Purger, ScopeBy,
    store::{Store, StoreKind},
};

use crate::{
    BoxError, api,
    auth::Account,
    crash::{CrashPoint, Crashing},
    databases::{self, Opened, PATIENCE},
    lease_store,
    ledger::Ledger,
    settings, stop,
};

/// How long connections may take to end after a signal, and then the charges whose clients have gone.
const CONNECTIONS: Duration = Duration::from_secs(5);
const CHARGES: Duration = Duration::from_secs(30);

/// Serves until SIGTERM or Ctrl-C, then lets what is running end.
pub(crate) async fn serve() -> Result<(), BoxError> {
    let url = settings::database_url()?;
    match url.split(':').next() {
        Some("sqlite") => serve_from(databases::sqlite(&url).await?).await,
        #[cfg(feature = "postgres")]
        Some("postgres" | "postgresql") => serve_from(databases::postgres(&url).await?).await,
        #[cfg(feature = "mysql")]
        Some("mysql") => serve_from(databases::mysql(&url).await?).await,
        Some(feature) if ["postgres", "mysql"].contains(&feature) => {
            Err(format!("DATABASE_URL: run with `--features axum,sqlite,{feature}`").into())
        }
        _ => Err("DATABASE_URL: expected sqlite://…, postgres://… or mysql://…".into()),
    }
}

async fn serve_from<DB: Ledger>(Opened { pool, store }: Opened<DB>) -> Result<(), BoxError> {
    let store = lease_store::from_env().await?.unwrap_or(store);
    let store: Arc<dyn Store> = match CrashPoint::from_env()? {
        None => store,
        Some(point) => Arc::new(Crashing::new(store, point)),
    };
    // Expired records count as absent anyway; this keeps the table small.
    let purger = Purger::new(Arc::clone(&store)).spawn();
    let drain = Drain::new();
    let idempotency = layer(store)?.with_drain(drain.clone());
    let app = api::router(pool.clone(), idempotency);

    let address = env::var("ADDR").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let server = axum::serve(listener, app).with_graceful_shutdown(stop::signal());
    let too_late = async {
        stop::signal().await;
        time::sleep(CONNECTIONS).await;
    };
    tokio::select! {
        served = server => served?,
        () = too_late => eprintln!("some connections did not end"),
    }

    let left = drain.wait(CHARGES).await;
    if left > 0 {
        eprintln!("{left} charges did not end, they are cut off");
        return Ok(());
    }
    purger.stop().await;
    pool.close().await;
    Ok(())
}

fn layer(store: Arc<dyn Store>) -> Result<IdempotencyLayer, BoxError> {
    let kind = store.kind();
    let layer = IdempotencyLayer::new(store, ScopeBy::extension(|a: &Account| a.0.clone()))
        .require_key()
        .with_run_limit(settings::run_limit()?);
    if kind == StoreKind::Lease {
        return Ok(layer
            .with_lease(settings::lease()?)
            .with_takeover(settings::takeover()?));
    }
    // A charge does nothing outside of its transaction, so it may run again when that loses against another one.
    Ok(layer
        .with_store_call_limit(PATIENCE)
        .with_transaction_retries(3))
}
