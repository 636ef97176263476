//! The store for Redis and Valkey.

mod connections;
mod error;
mod eviction;
mod listing;
mod record;
mod scan;
mod script;
mod steps;
mod store;

pub use self::store::RedisStore;
