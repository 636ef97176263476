//! The store for Redis and Valkey.

mod connections;
mod error;
mod eviction;
mod record;
mod script;
mod store;

pub use self::store::RedisStore;
