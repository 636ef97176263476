use std::{env, fs, sync::Arc, time::Duration};

use tokio::{net::TcpListener, time};
use tower_idempotency::{Drain, IdempotencyLayer, Purger, ScopeBy, store::Store};

use crate::{
    BoxError, api,
    auth::Account,
    crash::{CrashPoint, Crashing},
    databases::{self, Opened, PATIENCE},
    ledger::Ledger,
    stop,
};

/// How long connections may take to end after a signal, and then the charges whose clients have gone.
const CONNECTIONS: Duration = Duration::from_secs(5);
const CHARGES: Duration = Duration::from_secs(30);

/// Serves until SIGTERM or Ctrl-C, then lets what is running end.
pub(crate) async fn serve() -> Result<(), BoxError> {
    let url = database_url()?;
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
    let store: Arc<dyn Store> = match CrashPoint::from_env()? {
        None => store,
        Some(point) => Arc::new(Crashing::new(store, point)),
    };
    // Expired records count as absent anyway; this keeps the table small.
    let purger = Purger::new(Arc::clone(&store)).spawn();
    let drain = Drain::new();
    let idempotency = IdempotencyLayer::new(store, ScopeBy::extension(|a: &Account| a.0.clone()))
        .require_key()
        .with_store_call_limit(PATIENCE)
        .with_run_limit(run_limit()?)
        // A charge does nothing outside of its transaction, so it may run again when that loses against another one.
        .with_transaction_retries(3)
        .with_drain(drain.clone());
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
        eprintln!("{left} charges did not end, they are rolled back");
        return Ok(());
    }
    purger.stop().await;
    pool.close().await;
    Ok(())
}

/// What `DATABASE_URL` says, or a file under `target/`.
fn database_url() -> Result<String, BoxError> {
    if let Ok(url) = env::var("DATABASE_URL") {
        return Ok(url);
    }
    fs::create_dir_all("target")?;
    Ok("sqlite://target/payments.db".into())
}

/// How long a charge may run: as many seconds as `RUN_LIMIT` says, or a minute.
fn run_limit() -> Result<Duration, BoxError> {
    match env::var("RUN_LIMIT").map(|seconds| seconds.parse()) {
        Err(_unset) => Ok(Duration::from_secs(60)),
        Ok(Ok(seconds)) => Ok(Duration::from_secs(seconds)),
        Ok(Err(error)) => Err(format!("RUN_LIMIT: expected seconds: {error}").into()),
    }
}
