use std::{env, fs, future::pending, sync::Arc, time::Duration};

use sqlx::SqlitePool;
use tokio::{net::TcpListener, signal, time};
use tower_idempotency::{
    Drain, IdempotencyLayer, Purger, ScopeBy, sqlite::TransactionStore, store::Store,
};

use crate::{
    BoxError, api,
    auth::Account,
    crash::{CrashPoint, Crashing},
    db,
};

/// How long connections may take to end after a signal, and then the charges whose clients have gone.
const CONNECTIONS: Duration = Duration::from_secs(5);
const CHARGES: Duration = Duration::from_secs(30);

/// Serves until SIGTERM or Ctrl-C, then lets what is running end.
pub(crate) async fn serve() -> Result<(), BoxError> {
    let address = env::var("ADDR").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let pool = db::open(&database_url()?).await?;
    let store = store(&pool).await?;
    // Expired records count as absent anyway; this keeps the table small.
    let purger = Purger::new(Arc::clone(&store)).spawn();

    let drain = Drain::new();
    let idempotency = IdempotencyLayer::new(store, ScopeBy::extension(|a: &Account| a.0.clone()))
        .require_key()
        // SQLite has one writer at a time: a charge waits until the one before it has ended.
        .with_store_call_limit(db::PATIENCE)
        .with_drain(drain.clone());
    let app = api::router(pool.clone(), idempotency);

    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let server = axum::serve(listener, app).with_graceful_shutdown(stop_signal());
    tokio::select! {
        served = server => served?,
        () = stop_signal_and(CONNECTIONS) => eprintln!("some connections did not end"),
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

async fn store(pool: &SqlitePool) -> Result<Arc<dyn Store>, BoxError> {
    let store = TransactionStore::new(pool.clone());
    store.migrate().await?;
    Ok(match CrashPoint::from_env()? {
        None => Arc::new(store),
        Some(point) => Arc::new(Crashing::new(store, point)),
    })
}

async fn stop_signal_and(grace: Duration) {
    stop_signal().await;
    time::sleep(grace).await;
}

async fn stop_signal() {
    let interrupted = async {
        if signal::ctrl_c().await.is_err() {
            pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminated = async {
        match signal::unix::signal(signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => signal.recv().await,
            Err(_) => pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = pending::<()>();
    tokio::select! {
        () = interrupted => {}
        _ = terminated => {}
    }
}
