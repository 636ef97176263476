//! Postgres.

use sqlx::PgConnection as Connection;

use crate::servers::{Postgres as Private, postgres as shared};

#[path = "lives.rs"]
mod lives;

const SETTING: &str = "max_connections = 17";
const READ_SETTING: &str = "SELECT current_setting('max_connections')::bigint";
