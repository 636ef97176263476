//! The stores for Postgres, through sqlx and the application's own [`PgPool`](sqlx::PgPool).
//!
//! [`TransactionStore`] makes the handler's writes, the key and the saved response one transaction: exactly once for all that is
//! written through it. [`LeaseStore`] claims first and saves the response afterwards: no connection is held while the handler runs,
//! and a crash in mid-run leaves an unknown outcome.
//!
//! They need Postgres 12 or later, whose settings they read, and were tested on 15, 17 and 18.
//!
//! # The pool
//!
//! - [`test_before_acquire(false)`](sqlx::pool::PoolOptions::test_before_acquire) saves a round trip per call. A connection that broke
//!   while it was idle then fails the call that gets it, and is not used again.
//! - `acquire_timeout` is how long a call waits for a connection. It is of no use beyond the layer's store-call limit.
//! - Any default isolation is right. `READ COMMITTED` costs least.
//! - `synchronous_commit` must be on: a claim or a response that a crash of the server takes back runs twice. The same holds for a
//!   standby that takes over and hadn't received it.
//!
//! Behind a transaction pooler without support for prepared statements, such as PgBouncer before 1.21, connect with
//! [`statement_cache_capacity(0)`](sqlx::postgres::PgConnectOptions::statement_cache_capacity), as the stores then send their statements
//! in a way that is safe there. The handler's own statements need [`persistent(false)`](sqlx::query::Query::persistent), and have to be
//! in a transaction.
//!
//! # The tables
//!
//! `migrate()` makes them, or a team's own tool does from the shipped `src/store/postgres/lease.sql` and `transaction.sql`; `check()`
//! tells at start-up what is wrong with one. The comment on a table holds the version of its schema. The stores need the privileges
//! `SELECT`, `INSERT` and `UPDATE`, and `DELETE` for [`purge_expired`](crate::store::Store::purge_expired) and, in a
//! [`TransactionStore`], for [`forget`](crate::store::Store::forget).
//!
//! A record takes about 250 bytes and the saved response, indexes included; a lease store writes it twice before vacuum gives the room
//! of the first back. It goes with a purge only. Times are the database's, in microseconds since 1970.

pub use crate::store::postgres::{LeaseStore, TransactionStore};
