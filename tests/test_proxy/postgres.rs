//! With the protocol of Postgres.

use sqlx::{PgConnection as Connection, PgPool as Pool, postgres::PgPoolOptions as Options};

#[path = "faults.rs"]
mod faults;
#[path = "outages.rs"]
mod outages;
#[path = "passes.rs"]
mod passes;
#[path = "world.rs"]
mod world;

async fn database() -> Option<String> {
    Some(crate::servers::postgres()?.database().await)
}
