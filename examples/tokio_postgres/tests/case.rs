use axum::{Router, handler::Handler, routing::post};
use http::StatusCode;
use tower_idempotency::{IdempotencyLayer, RejectionKind, ScopeBy};

use super::{
    Database,
    support::{self, Answer, send},
};
use crate::store::TransactionStore;

pub(super) const INSERT: &str = "INSERT INTO effects VALUES (1)";

/// A handler behind the layer, over a database with a table for its effects.
pub(super) struct Case {
    app: Router,
    database: Database,
}

impl Case {
    /// None if there is no Postgres on this machine.
    pub(super) async fn new<T: 'static>(handler: impl Handler<T, ()>) -> Option<Self> {
        let database = Database::new().await?;
        let store = database.store(4).await;
        Some(Self::over(store, database, handler).await)
    }

    pub(super) async fn over<T: 'static>(
        store: TransactionStore,
        database: Database,
        handler: impl Handler<T, ()>,
    ) -> Self {
        let table = "CREATE TABLE effects (id int8 PRIMARY KEY DEFERRABLE)";
        let made = database.connect().await.batch_execute(table).await;
        made.expect("a table");
        let layer = IdempotencyLayer::new(store, ScopeBy::single_tenant());
        let routes = Router::new().route("/charges", post(handler));
        let app = routes.route_layer(layer.require_key().with_transaction_retries(1));
        Self { app, database }
    }

    pub(super) async fn post(&self) -> Answer {
        send(&self.app, support::post("k", "{}")).await
    }

    /// How many effects, records and locked keys there are.
    pub(super) async fn left(&self) -> [i64; 3] {
        let mut left = [0; 3];
        for (number, query) in left.iter_mut().zip([
            "SELECT count(*) FROM effects",
            "SELECT count(*) FROM idempotency",
            "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
                WHERE locktype = 'advisory' AND datname = current_database()",
        ]) {
            *number = self.database.number(query).await;
        }
        left
    }
}

pub(super) const NOTHING: [i64; 3] = [0, 0, 0];

/// 500 `handler_failed`.
pub(super) fn failed(answer: &Answer) -> bool {
    answer.status() == StatusCode::INTERNAL_SERVER_ERROR
        && answer.rejection() == Some(RejectionKind::HandlerFailed)
}
