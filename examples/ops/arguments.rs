use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::target::Target;

/// Looks at the records of idempotency keys, and frees keys.
#[derive(Debug, Parser)]
#[command(
    name = "ops",
    after_help = "Exit codes: 0 done; 1 no such record, not confirmed, or changed meanwhile; 2 wrong usage; 3 the store or the output failed."
)]
pub(crate) struct Arguments {
    /// sqlite://…, postgres://…, mysql://…, redis://… or redis-cluster://…; `-` takes it from the environment variable STORE_URL
    pub(crate) store_url: String,
    /// The records are those of a transaction store, not of a lease store
    #[arg(long, global = true)]
    pub(crate) transaction: bool,
    /// The store's table, if it isn't the default one (Postgres, MySQL)
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) table: Option<String>,
    /// What the names of the records begin with, if the service has `with_prefix` (Redis)
    #[arg(long, global = true)]
    pub(crate) prefix: Option<String>,
    /// The server may evict records: the service has `allow_eviction` (Redis)
    #[arg(long, global = true)]
    pub(crate) allow_eviction: bool,
    /// Prints JSON: one document, or one per line for a list
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows what is recorded under a key
    Inspect {
        #[command(flatten)]
        target: Target,
        /// Shows the saved headers and body, too
        #[arg(long)]
        body: bool,
    },
    /// Lists runs in flight and runs of unknown outcome, the oldest first (on Redis in no order)
    List {
        /// Only those whose last claim is at least this old, as in `10m` or `2h 30m`
        #[arg(long, value_name = "AGE", default_value = "0s", value_parser = humantime::parse_duration)]
        older_than: Duration,
        /// How many at most
        #[arg(long, default_value_t = 100)]
        limit: u32,
    },
    /// Removes the record of a key: the next request with it runs, whatever an earlier one did
    Forget {
        #[command(flatten)]
        target: Target,
        /// Doesn't ask
        #[arg(long)]
        yes: bool,
    },
    /// Removes all expired records (on Redis there are none)
    Purge {
        /// How many at once
        #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
        batch: u32,
    },
    /// Counts the records by how they stand
    Stats,
    /// Tells whether the store answers, and whether its table or server is as it should be
    Ping,
}
