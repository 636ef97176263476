//! Requests that wait for a run in another process, on each store on a server.

use std::time::Duration;

use http::StatusCode;
use tokio::task::JoinHandle;
use tower::{Layer, limit::ConcurrencyLimitLayer};
use tower_idempotency::{Idempotency, OnInFlight, RejectionKind, store::Takeover};

use crate::{
    other::{LIMIT, orders, tell, told},
    shop::{BOUNDS, Shop},
    support::{Answer, faulty::Call, handler::Gate, post, probe::spawn_send, send},
};

/// How long the other process waits if it is to wait briefly.
const BRIEFLY: Duration = Duration::from_millis(300);

macro_rules! on_stores {
    (@$store:ident $kind:ident $feature:literal $($scenario:ident)*) => {
        #[cfg(feature = $feature)]
        mod $store {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $scenario() {
                    if let Some(shop) = crate::shop::Shop::new(crate::shop::Kind::$kind).await {
                        super::$scenario(shop).await;
                    }
                }
            )*
        }
    };
    ([$($scenario:ident)*] on_leases: [$($on_leases:ident)*]) => {
        on_stores!(@postgres_leases PostgresLeases "postgres" $($scenario)* $($on_leases)*);
        on_stores!(@mariadb_leases MariaDbLeases "mysql" $($scenario)* $($on_leases)*);
        on_stores!(@redis Redis "redis" $($scenario)* $($on_leases)*);
        on_stores!(@postgres_transactions PostgresTransactions "postgres" $($scenario)*);
        on_stores!(@mariadb_transactions MariaDbTransactions "mysql" $($scenario)*);
    };
}

on_stores! {
    [
        waiters_get_the_answer_of_another_process_and_hold_nothing_meanwhile
        a_waiter_gets_409_at_its_limit_while_another_process_runs
        when_a_run_was_released_one_of_all_who_wait_in_two_processes_runs
        when_the_other_process_was_killed_one_of_all_who_wait_runs
    ]
    on_leases: [
        of_a_thousand_duplicates_a_few_wait_over_a_pool_of_five_and_the_rest_gets_409_at_once
        when_the_other_process_was_killed_and_nothing_may_run_again_those_who_wait_are_told
    ]
}

async fn waiters_get_the_answer_of_another_process_and_hold_nothing_meanwhile(shop: Shop) {
    let (run, gate) = held_run(&shop, "held", StatusCode::CREATED).await;
    // It has one connection, and one permit of the handler.
    let mut other = shop.other_process(1).await;
    other.tell("send patient 4 held").await;
    other.tell("looks 8").await;
    assert_eq!(other.hears().await, "looks");
    for key in ["another", "a-third"] {
        other.tell(&format!("send patient 1 {key}")).await;
        assert_eq!(other.hears_answer().await, ran("there", 1));
    }
    gate.open();
    let answer = run.await.expect("an answer");
    assert_eq!(told(&answer), ran("here", 1));
    for _ in 0..4 {
        assert_eq!(other.hears_answer().await, replayed("here", 1));
    }
    assert_eq!(shop.effects("held").await, 1);
}

async fn a_waiter_gets_409_at_its_limit_while_another_process_runs(shop: Shop) {
    let (run, gate) = held_run(&shop, "held", StatusCode::CREATED).await;
    let mut other = shop.other_process(1).await;
    other.tell("send brief 2 held").await;
    for _ in 0..2 {
        assert_in_flight(&other.hears_answer().await);
    }
    assert!(!run.is_finished());
    gate.open();
    assert_eq!(told(&run.await.expect("an answer")), ran("here", 1));
    other.tell("send brief 1 held").await;
    assert_eq!(other.hears_answer().await, replayed("here", 1));
    assert_eq!(shop.effects("held").await, 1);
}

async fn when_a_run_was_released_one_of_all_who_wait_in_two_processes_runs(shop: Shop) {
    let (run, gate) = held_run(&shop, "k", StatusCode::NOT_FOUND).await;
    let mut other = shop.other_process(2).await;
    other.tell("send patient 4 k").await;
    other.tell("looks 8").await;
    assert_eq!(other.hears().await, "looks");
    let patient = shop
        .layer()
        .with_on_in_flight(OnInFlight::Wait(LIMIT))
        .layer(shop.handler("here", StatusCode::CREATED));
    let here: Vec<_> = (0..4)
        .map(|_| spawn_send(&patient, post("k", "{}")))
        .collect();
    shop.store.reached(Call::Inspect, 8).await;

    gate.open();
    let answer = run.await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    let mut answers = Vec::new();
    for waiter in here {
        answers.push(told(&waiter.await.expect("an answer")));
    }
    for _ in 0..4 {
        answers.push(other.hears_answer().await);
    }
    assert_one_ran(&answers, 1);
    let released = i64::from(!shop.is_transaction());
    assert_eq!(shop.effects("k").await, released + 1);
}

async fn when_the_other_process_was_killed_one_of_all_who_wait_runs(shop: Shop) {
    let mut other = shop.other_process(1).await;
    other.tell("send patient 1 killed").await;
    assert_eq!(other.hears().await, "effect killed");
    let layer = shop.layer().with_takeover(Takeover::RunAgain);
    let patient = layer.with_on_in_flight(OnInFlight::Wait(LIMIT));
    let patient = patient.layer(shop.handler("here", StatusCode::CREATED));
    let waiters: Vec<_> = (0..4)
        .map(|_| spawn_send(&patient, post("killed", "{}")))
        .collect();
    shop.store.reached(Call::Inspect, 4).await;
    other.kill().await;

    let mut answers = Vec::new();
    for waiter in waiters {
        answers.push(told(&waiter.await.expect("an answer")));
    }
    let killed = i64::from(!shop.is_transaction());
    assert_one_ran(&answers, killed + 1);
    assert_eq!(shop.effects("killed").await, killed + 1);
}

async fn when_the_other_process_was_killed_and_nothing_may_run_again_those_who_wait_are_told(
    shop: Shop,
) {
    let mut other = shop.other_process(1).await;
    other.tell("send patient 1 killed").await;
    assert_eq!(other.hears().await, "effect killed");
    let service = shop.layer().with_on_in_flight(OnInFlight::Wait(LIMIT));
    let service = service.layer(shop.handler("here", StatusCode::CREATED));
    let waiters: Vec<_> = (0..4)
        .map(|_| spawn_send(&service, post("killed", "{}")))
        .collect();
    shop.store.reached(Call::Inspect, 4).await;
    other.kill().await;
    for waiter in waiters {
        let waited = waiter.await.expect("an answer");
        assert_eq!(waited.rejection(), Some(RejectionKind::OutcomeUnknown));
    }
    let later = send(&service, post("killed", "{}")).await;
    assert_eq!(later.rejection(), Some(RejectionKind::OutcomeUnknown));
    assert_eq!(shop.effects("killed").await, 1);
}

async fn of_a_thousand_duplicates_a_few_wait_over_a_pool_of_five_and_the_rest_gets_409_at_once(
    shop: Shop,
) {
    let (one, gate_of_one) = held_run(&shop, "held-1", StatusCode::CREATED).await;
    let (two, gate_of_two) = held_run(&shop, "held-2", StatusCode::CREATED).await;
    let mut other = shop.other_process(5).await;
    // So many wait for one key, and then only so many for another.
    let places = [("held-1", BOUNDS.0), ("held-2", BOUNDS.1 - BOUNDS.0)];
    for (key, places) in places {
        let mut waiting = 0;
        for _ in 0..5 {
            other.tell(&format!("send patient 100 {key}")).await;
            for _ in places - waiting..100 {
                assert_in_flight(&other.hears_answer().await);
            }
            waiting = places;
        }
    }
    other.tell("send patient 1 another").await;
    assert_eq!(other.hears_answer().await, ran("there", 1));
    gate_of_one.open();
    gate_of_two.open();
    for run in [one, two] {
        assert_eq!(told(&run.await.expect("an answer")), ran("here", 1));
    }
    for _ in 0..BOUNDS.1 {
        assert_eq!(other.hears_answer().await, replayed("here", 1));
    }
    for key in ["held-1", "held-2"] {
        assert_eq!(shop.effects(key).await, 1);
    }
}

/// A run of this process that stands at its gate.
async fn held_run(shop: &Shop, key: &str, status: StatusCode) -> (JoinHandle<Answer>, Gate) {
    let gate = Gate::closed();
    let handler = shop.held_handler("here", status, ("", gate.clone()));
    let service = shop.layer().layer(handler);
    let run = spawn_send(&service, post(key, "{}"));
    gate.reached().await;
    (run, gate)
}

fn ran(place: &str, attempt: i64) -> String {
    format!("201 None false {place}, attempt {attempt}")
}

fn replayed(place: &str, attempt: i64) -> String {
    format!("201 None true {place}, attempt {attempt}")
}

#[track_caller]
fn assert_in_flight(answer: &str) {
    assert!(answer.starts_with("409 Some(InFlight)"), "{answer}");
}

/// One of them in this attempt, and the others have its answer.
#[track_caller]
fn assert_one_ran(answers: &[String], attempt: i64) {
    let of = |place| {
        let [run, replay] = [ran(place, attempt), replayed(place, attempt)];
        let count = |text| answers.iter().filter(|answer| **answer == text).count();
        (count(run), count(replay))
    };
    let one = (1, answers.len() - 1);
    assert!(of("here") == one || of("there") == one, "{answers:#?}");
}

/// Not a test: what the other process does. It ends with its input, which ends with its parent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the tests start it as a process of its own"]
async fn the_other_process() {
    let Some(shop) = Shop::of_parent().await else {
        return;
    };
    let service = |limit| -> Idempotency<_> {
        let held = ("killed", Gate::closed());
        let handler = shop.held_handler("there", StatusCode::CREATED, held);
        let layer = shop.layer().with_on_in_flight(OnInFlight::Wait(limit));
        layer.layer(ConcurrencyLimitLayer::new(1).layer(handler))
    };
    let (patient, brief) = (service(LIMIT), service(BRIEFLY));
    let mut orders = orders();
    tell("ready");
    while let Some(order) = orders.next_line().await.expect("an input") {
        match order.split(' ').collect::<Vec<_>>()[..] {
            ["send", patience, count, key] => {
                let service = if patience == "patient" {
                    &patient
                } else {
                    &brief
                };
                for _ in 0..count.parse().expect("a number") {
                    let (service, request) = (service.clone(), post(key, "{}"));
                    tokio::spawn(async move {
                        tell(&format!("answer {}", told(&send(&service, request).await)));
                    });
                }
            }
            ["looks", count] => {
                let (store, count) = (shop.store.clone(), count.parse().expect("a number"));
                tokio::spawn(async move {
                    store.reached(Call::Inspect, count).await;
                    tell("looks");
                });
            }
            _ => panic!("what is {order}?"),
        }
    }
}
