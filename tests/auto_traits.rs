//! What may be shared among threads, moved to another one, cloned and unpinned: all of it is part of the public interface, and none of it
//! is written down in the code. What is missing doesn't compile.

use std::{
    convert::Infallible,
    error::Error,
    fmt::Debug,
    future::{Ready, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::util::BoxCloneSyncService;
use tower_idempotency::{
    DetachedRun, Drain, Fingerprint, FingerprintBy, GrpcStatus, Idempotency, IdempotencyContext,
    IdempotencyKey, IdempotencyLayer, Identity, InvalidKey, KeyBy, KeyFormat, Observation,
    OnInFlight, OnStoreFailure, Outcome, Purger, PurgerHandle, RecordKey, Rejection, RejectionKind,
    RequestBody, ResponseBody, ResponseFuture, ResponsePolicy, SavedResponse, Scope, ScopeBy,
    StepError, StepErrorKind, StoreError, StoreErrorKind, Tag, Verdict,
    store::{
        Claim, Counts, Cursor, ListRecords, Listed, Nonce, Note, Page, Record, RecordState,
        Reservation, Steps, Store, StoreKind, Takeover, Terms,
    },
};

type Body = Full<Bytes>;
/// A service that is no more than what the layer asks for.
type Plain<B> = BoxCloneSyncService<Request<RequestBody<B>>, Response<B>, Infallible>;
type Answered = Ready<Result<Response<Body>, Infallible>>;

/// Can be kept in a server's state, and sent to its tasks.
fn is_shared<T: Debug + Send + Sync + Unpin + 'static>() {}

fn is_cloned<T: Debug + Clone + Send + Sync + Unpin + 'static>() {}

fn is_copied<T: Debug + Copy + Send + Sync + Unpin + 'static>() {}

/// Fits into a boxed error, as that of `anyhow` or of tower.
fn is_error<T: Error + Send + Sync + Unpin + 'static>() {}

/// Can be spawned.
fn is_sent<T: Send>(_: &T) {}

#[test]
fn what_a_server_is_made_of_is_shared_among_threads() {
    is_cloned::<IdempotencyLayer>();
    is_cloned::<Idempotency<Plain<Body>>>();
    is_cloned::<(KeyBy, KeyFormat, ScopeBy, FingerprintBy, ResponsePolicy)>();
    is_cloned::<(Drain, Observation, Rejection)>();
    is_shared::<(Purger, PurgerHandle)>();
    is_copied::<(OnInFlight, OnStoreFailure, Takeover)>();
    is_copied::<(Outcome, RejectionKind, Verdict, GrpcStatus)>();
}

#[test]
fn what_a_handler_gets_goes_with_its_task() {
    is_cloned::<(IdempotencyContext, IdempotencyKey, Scope)>();
    is_shared::<RequestBody<Body>>();
    is_shared::<ResponseBody<Body>>();
    fn stepped(context: &IdempotencyContext) {
        is_sent(&context.step("name", || ready(Ok::<_, StepError>(1))));
    }
    let _: fn(&_) = stepped;
}

#[test]
fn what_a_store_deals_in_is_shared_among_threads() {
    is_shared::<Box<dyn Store>>();
    is_shared::<Box<dyn ListRecords>>();
    is_cloned::<(Claim, Terms, Record, RecordState, SavedResponse)>();
    is_cloned::<(Page, Listed, Cursor, Note)>();
    is_shared::<Reservation>();
    is_copied::<(RecordKey, Fingerprint, Tag, Nonce, StoreKind, Counts)>();
    fn identity<T: Clone + Send + Sync>() {}
    identity::<Identity<'_>>();
    fn steps<T: Send + Sync + ?Sized>() {}
    steps::<dyn Steps>();
}

#[test]
fn errors_fit_into_a_box() {
    is_error::<InvalidKey>();
    is_error::<StepError>();
    is_error::<StoreError>();
    is_copied::<(StepErrorKind, StoreErrorKind)>();
}

#[test]
fn futures_can_be_spawned() {
    fn is_future<T: Future + Debug + Send + 'static>() {}
    is_future::<DetachedRun>();
    is_future::<ResponseFuture<Answered, Body, Infallible>>();
    is_sent(&Drain::new().wait(Duration::ZERO));
    fn stopped(handle: PurgerHandle) {
        is_sent(&handle.stop());
    }
    let _: fn(PurgerHandle) = stopped;
}

#[cfg(feature = "memory")]
#[test]
fn a_memory_store_is_shared_among_threads() {
    is_cloned::<tower_idempotency::MemoryStore>();
}

#[cfg(feature = "redis")]
#[test]
fn a_redis_store_is_shared_among_threads() {
    fn checked(store: &tower_idempotency::RedisStore) {
        is_sent(&store.check());
    }
    is_cloned::<tower_idempotency::RedisStore>();
    let _: fn(&_) = checked;
}

/// The stores of one database, and the transaction of its handlers.
macro_rules! sql_stores {
    ($feature:literal, $test:ident, $module:ident, $database:ty) => {
        #[cfg(feature = $feature)]
        #[test]
        fn $test() {
            use tower_idempotency::{Tx, TxError, $module::*};

            fn prepared(leases: &LeaseStore, transactions: &TransactionStore) {
                is_sent(&(leases.migrate(), leases.check()));
                is_sent(&(transactions.migrate(), transactions.check()));
            }
            is_cloned::<(LeaseStore, TransactionStore)>();
            is_shared::<Tx<$database>>();
            is_error::<TxError>();
            let _: fn(&_, &_) = prepared;
        }
    };
}

sql_stores!(
    "sqlite",
    the_stores_of_sqlite_are_shared_among_threads,
    sqlite,
    sqlx::Sqlite
);
sql_stores!(
    "postgres",
    the_stores_of_postgres_are_shared_among_threads,
    postgres,
    sqlx::Postgres
);
sql_stores!(
    "mysql",
    the_stores_of_mysql_are_shared_among_threads,
    mysql,
    sqlx::MySql
);

#[cfg(feature = "client")]
#[test]
fn a_client_is_shared_among_threads() {
    use tower_idempotency::client::{
        Decision, Delivery, Error, ErrorKind, GaveUp, IdempotentRetry, IdempotentRetryLayer,
        ResponseFuture, Resumed, RetryPolicy,
    };

    is_cloned::<(IdempotentRetryLayer, RetryPolicy, Delivery)>();
    is_cloned::<IdempotentRetry<Plain<Body>>>();
    is_copied::<(Decision, ErrorKind, GaveUp, Resumed)>();
    is_error::<Error>();
    fn is_future<T: Future + Debug + Send + 'static>() {}
    is_future::<ResponseFuture<Answered, Body>>();
}

#[cfg(feature = "reqwest")]
#[test]
fn a_client_over_reqwest_is_shared_among_threads() {
    use tower_idempotency::client::{IdempotentRetry, ReqwestFuture, ReqwestService};

    fn is_future<T: Future + Debug + Send + 'static>() {}
    is_cloned::<IdempotentRetry<ReqwestService>>();
    is_future::<ReqwestFuture>();
}
