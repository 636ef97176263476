//! Every default of the layer and of what comes with it, each with its reason.

use std::time::Duration;

use http::HeaderName;

/// How long a claim lasts unrenewed: several renewals may fail, and a crash blocks its key for half a minute at most.
pub const LEASE: Duration = Duration::from_secs(30);
/// The `Retry-After` of refusals that a retry may find gone, and the least that it ever is: the header counts in whole seconds.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long a record is kept: a day, as Stripe and most payment APIs do.
pub const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// The name for [`with_expiry_header`](crate::IdempotencyLayer::with_expiry_header), `Idempotency-Expires-In`. Seconds that are left, as in
/// `Retry-After`: a date would have to be compared with the client's clock, and written by that of a server.
pub const EXPIRY_HEADER: HeaderName = HeaderName::from_static("idempotency-expires-in");
/// How long a handler may run: longer than any client waits, short enough that a hanging one doesn't hold its key for ever.
pub const RUN_LIMIT: Duration = Duration::from_secs(5 * 60);
/// How long the layer waits for one call of the store; for a lease store a third of the lease, if that is shorter.
pub const STORE_CALL_LIMIT: Duration = Duration::from_secs(5);
/// How long the layer waits for the end of a response body before it streams it unsaved.
pub const COLLECT_LIMIT: Duration = Duration::from_secs(5);
/// How often a handler runs again after its transaction lost against another one: never, since what it does outside of its
/// transaction would happen again.
pub const TRANSACTION_RETRIES: u32 = 0;
/// The largest request or response body that is held in memory: 1 MiB, far above the JSON that such operations exchange.
pub const BODY_LIMIT: usize = 1024 * 1024;
/// The most requests that wait for one key (see [`OnInFlight::Wait`](crate::OnInFlight::Wait)): an honest client has one or two retries in the air.
pub const WAITERS_PER_KEY: usize = 8;
/// The most requests that wait in total: a waiting request costs a few kilobytes.
pub const WAITERS: usize = 1024;
/// The most settlements that are retried in the background before new keyed requests are refused.
pub const SETTLEMENTS: usize = 1024;
/// The most bytes of the responses among them.
pub const SETTLEMENT_BYTES: usize = 64 * 1024 * 1024;
/// The most calls of the store that go on after their limit, before it asks no more: a store that
/// hangs then costs a few megabytes.
pub const LATE_CALLS: usize = 1024;
/// How often a [`Purger`](crate::Purger) looks for expired records: seldom enough to cost nothing, often enough that there are
/// never many.
pub const PURGE_INTERVAL: Duration = Duration::from_secs(60);
/// How many records a [`Purger`](crate::Purger) removes in one call: some milliseconds of work for a database.
pub const PURGE_BATCH: u32 = 1_000;
