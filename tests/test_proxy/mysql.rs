//! With the protocol of MySQL.

use sqlx::{MySqlConnection as Connection, MySqlPool as Pool, mysql::MySqlPoolOptions as Options};

#[path = "faults.rs"]
mod faults;
#[path = "outages.rs"]
mod outages;
#[path = "passes.rs"]
mod passes;
#[path = "world.rs"]
mod world;

async fn database() -> Option<String> {
    Some(crate::servers::mariadb()?.database().await)
}
