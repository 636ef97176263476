//! Checks that a store keeps the contract of [`Store`](crate::store::Store): one plain async fn per numbered clause, of the same name.
//!
//! A check panics if its clause is broken, and names it. Each takes random keys of its own and wipes nothing,
//! so that all of them can run in parallel on one store, also one with data in it.
//!
//! [`conformance_tests!`](crate::conformance_tests) makes one test of each clause. It needs tokio with the features
//! `macros` and `rt` as a dev-dependency, and nothing else:
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//!
//! use async_trait::async_trait;
//! use tower_idempotency::{MemoryStore, conformance::Harness, store::Store};
//!
//! struct Memory(MemoryStore);
//!
//! #[async_trait]
//! impl Harness for Memory {
//!     fn store(&self) -> Arc<dyn Store> {
//!         Arc::new(self.0.clone())
//!     }
//!
//!     async fn pass(&self, time: Duration) {
//!         tokio::time::advance(time).await;
//!     }
//! }
//!
//! async fn memory() -> Memory {
//!     Memory(MemoryStore::new())
//! }
//!
//! tower_idempotency::conformance_tests!(
//!     #[tokio::test(start_paused = true)]
//!     lease: memory
//! );
//! # fn main() {}
//! ```
//!
//! What it can't check, as it sees a store through its trait only: that expired records do get purged, that records survive
//! a restart, and what becomes of the handler's writes in a transaction. A store needs tests of its own for those.
//!
//! # New clauses
//!
//! A compatible release may add clauses, and the macro then makes tests of them: the CHANGELOG names each. They state what the layer
//! relied on before, so that a store that fails one had the fault before. To ask more of a store is a breaking change.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "whatever else a store answers breaks the clause"
)]

mod case;
mod harness;
mod macros;
mod race;

pub mod late;
pub mod listing;
pub mod operating;
pub mod reserving;
pub mod settling;
pub mod steps;
pub mod time;
pub mod transaction;

pub use self::harness::{Harness, ListingHarness};
