use std::ops::{Deref, DerefMut};

use axum::{extract::FromRequestParts, http::request::Parts};
use sqlx::{Database, Pool};
use tower_idempotency::{IdempotencyContext, Tx};

use crate::problem::Problem;

/// The transaction that a handler writes through.
pub(crate) enum Transaction<DB: Database> {
    /// A transaction store's, which commits it with the key and the answer.
    Shared(Tx<DB>),
    /// The handler's own, beside a lease store, which claimed the key before it and saves the answer after it.
    Own(sqlx::Transaction<'static, DB>),
}

impl<DB: Database> Transaction<DB> {
    /// For the end of a handler that succeeds. A crash between this and the saved answer leaves an outcome that the lease store
    /// doesn't know.
    pub(crate) async fn commit(self, context: &IdempotencyContext) -> Result<(), Problem> {
        match self {
            // The store's turn, when the handler has answered.
            Self::Shared(_) => Ok(()),
            Self::Own(_) if context.claim_lost() => {
                Err(Problem::internal("another run has taken the key over"))
            }
            Self::Own(transaction) => Ok(transaction.commit().await?),
        }
    }
}

/// One that is dropped is rolled back, be it the store's or the handler's own.
impl<DB: Database> FromRequestParts<Pool<DB>> for Transaction<DB> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, pool: &Pool<DB>) -> Result<Self, Problem> {
        let shared = Option::<Tx<DB>>::from_request_parts(parts, pool).await;
        if let Some(tx) = shared.map_err(Problem::internal)? {
            return Ok(Self::Shared(tx));
        }
        // SQLite's plain BEGIN lets a transaction fail that reads first, if another one has written when it comes to write.
        let begin = if DB::NAME == "SQLite" {
            "BEGIN IMMEDIATE"
        } else {
            "BEGIN"
        };
        Ok(Self::Own(pool.begin_with(begin).await?))
    }
}

impl<DB: Database> Deref for Transaction<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Shared(tx) => tx,
            Self::Own(transaction) => transaction,
        }
    }
}

impl<DB: Database> DerefMut for Transaction<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Shared(tx) => tx,
            Self::Own(transaction) => transaction,
        }
    }
}
