//! MariaDB; the shared one may be MySQL.

use sqlx::MySqlConnection as Connection;

use crate::servers::{MariaDb as Private, mariadb as shared};

#[path = "lives.rs"]
mod lives;

const SETTING: &str = "max-connections = 17";
const READ_SETTING: &str = "SELECT cast(@@max_connections AS signed)";
