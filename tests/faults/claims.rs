//! Claims of a lease store in an outage: who runs meanwhile, and what the lease is worth.

use http::StatusCode;
use tower_idempotency::{
    RejectionKind,
    store::{StoreKind::Lease, Takeover},
};

use super::{
    ONE_CONNECTION,
    app::{App, Handler},
    statement::{release, renew, reserve, settle},
    world::{World, new_account},
};
use crate::{
    network::{LIMIT, Outage, end, side_by_side, until},
    support::handler::Gate,
    table::{recorded, seen},
};

fn app(world: &World, size: u32, takeover: Takeover, handler: Handler) -> App {
    App::with(world, Lease, size, handler, |layer| {
        layer.with_takeover(takeover)
    })
}

/// Nothing has run, but nobody can tell: neither the layer nor the record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_answer_is_lost_for_good_reads_as_a_run_of_unknown_outcome() {
    let Some(world) = World::shared().await else {
        return;
    };
    let cases = [
        (Takeover::Refuse, "409 outcome_unknown", 0),
        (Takeover::RunAgain, "201 run 1", 1),
    ];
    side_by_side(cases.map(|(takeover, retry, charges)| {
        let (world, account) = (world.clone(), new_account());
        let app = app(&world, 2, takeover, Handler::answering(201));
        async move {
            let strikes = app.proxy.inject(Outage::Swallowed.on(reserve()));
            let asked = app.spawn_charge(&account);
            strikes.struck(1).await;
            // The claim can't be given back either.
            app.proxy.refuse();
            let answer = end(asked).await.expect("no panic");
            assert_eq!(seen(&answer), "503 store_unavailable");
            assert_eq!(app.drain.wait(LIMIT).await, 0);
            app.proxy.accept();
            let record = recorded(world.record(Lease, &account).await);
            assert_eq!(record, "in flight");
            assert_eq!(seen(&app.charge(&account).await), "409 in_flight");
            assert_eq!(seen(&app.retry(&account).await), retry);
            assert_eq!(world.charges(&account).await, charges);
            app.assert_healthy().await;
        }
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_that_comes_late_claims_nothing() {
    let Some(world) = World::shared().await else {
        return;
    };
    let cases = match ONE_CONNECTION {
        false => [
            (Outage::Hangs, "201 run 1", "201 run 1, replayed"),
            (Outage::Swallowed, "409 in_flight", "201 run 1"),
        ],
        // The other request waits behind the first.
        true => [
            (Outage::Hangs, "503 store_unavailable", "201 run 1"),
            (Outage::Swallowed, "503 store_unavailable", "201 run 1"),
        ],
    };
    side_by_side(cases.map(|(outage, meanwhile, retry)| {
        let (world, account) = (world.clone(), new_account());
        let app = app(&world, 2, Takeover::Refuse, Handler::answering(201));
        async move {
            let strikes = app.proxy.inject(outage.on(reserve()));
            let answer = app.charge(&account).await;
            assert_eq!(seen(&answer), "503 store_unavailable");
            let answer = app.charge(&account).await;
            assert_eq!(seen(&answer), meanwhile, "{outage:?}");
            outage.end(&app.proxy, &strikes).await;
            assert_eq!(seen(&app.retry(&account).await), retry, "{outage:?}");
            assert_eq!((app.runs.count(), world.charges(&account).await), (1, 1));
            app.assert_healthy().await;
        }
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_is_enough_for_a_claim() {
    let Some(world) = World::shared().await else {
        return;
    };
    let lasting = Outage::ALL.into_iter().filter(|outage| outage.lasts());
    let cases = lasting.flat_map(|outage| [(outage, renew()), (outage, settle())]);
    side_by_side(cases.map(|(outage, statement)| {
        let (world, account, gate) = (world.clone(), new_account(), Gate::closed());
        let handler = Handler {
            before: Some(gate.clone()),
            ..Handler::answering(201)
        };
        let app = app(&world, 1, Takeover::Refuse, handler);
        async move {
            let strikes = app.proxy.inject(outage.on(statement));
            let asked = app.spawn_charge(&account);
            if statement == settle() {
                gate.open();
            }
            strikes.struck(1).await;
            outage.struck(&app.proxy);
            gate.open();
            let answer = end(asked).await.expect("no panic");
            assert_eq!(seen(&answer), "201 run 1", "{outage:?} of {statement}");
            outage.end(&app.proxy, &strikes).await;
            let retry = seen(&app.retry(&account).await);
            assert_eq!(retry, "201 run 1, replayed", "{outage:?} of {statement}");
            assert_eq!((app.runs.count(), world.charges(&account).await), (1, 1));
            app.assert_healthy().await;
        }
    }))
    .await;
}

/// As the table has it; and the key is another's by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_that_comes_late_changes_nothing_of_the_next_claims() {
    let Some(world) = World::shared().await else {
        return;
    };
    side_by_side([(release(), 404, false), (settle(), 502, true)].map(
        |(statement, status, charges)| {
            let (world, account, gate) = (world.clone(), new_account(), Gate::closed());
            let handler = Handler {
                charges,
                ..Handler::answering(status)
            };
            let first = app(&world, 2, Takeover::RunAgain, handler);
            let handler = Handler {
                after: Some(gate.clone()),
                ..Handler::answering(201)
            };
            let other = app(&world, 2, Takeover::RunAgain, handler);
            async move {
                let strikes = first.proxy.inject(Outage::Late.on(statement));
                let answer = first.charge(&account).await;
                assert_eq!(answer.status().as_u16(), status);
                assert_eq!(first.drain.wait(LIMIT).await, 0);
                let asked = tokio::spawn({
                    let (other, account) = (other.clone(), account.clone());
                    async move { other.retry(&account).await }
                });
                end(gate.reached()).await;
                Outage::Late.end(&first.proxy, &strikes).await;
                let record = recorded(world.record(Lease, &account).await);
                assert_eq!(record, "in flight", "{statement}");
                assert_eq!(seen(&first.charge(&account).await), "409 in_flight");
                gate.open();
                let answer = seen(&end(asked).await.expect("no panic"));
                assert_eq!(answer, "201 run 1", "{statement}");
                let retry = seen(&first.charge(&account).await);
                assert_eq!(retry, "201 run 1, replayed", "{statement}");
                let expected = 1 + i64::from(charges);
                assert_eq!(world.charges(&account).await, expected);
                first.assert_healthy().await;
                other.assert_healthy().await;
            }
        },
    ))
    .await;
}

/// The owner runs on, and doesn't know whether others think that it is dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_is_cut_off_for_longer_than_its_lease_gets_what_the_record_says() {
    let Some(world) = World::shared().await else {
        return;
    };
    let cases = [
        (Takeover::Refuse, "409 outcome_unknown", "201 run 1", 1),
        (Takeover::RunAgain, "201 run 1", "201 run 1, replayed", 2),
    ];
    side_by_side(cases.map(|(takeover, told, late, charges)| {
        let (world, account, gate) = (world.clone(), new_account(), Gate::closed());
        let handler = Handler {
            after: Some(gate.clone()),
            ..Handler::answering(201)
        };
        let owner = app(&world, 2, takeover, handler);
        let other = app(&world, 2, takeover, Handler::answering(201));
        async move {
            let asked = owner.spawn_charge(&account);
            end(gate.reached()).await;
            owner.proxy.refuse();
            assert_eq!(seen(&other.charge(&account).await), "409 in_flight");
            assert_eq!(seen(&other.retry(&account).await), told, "{takeover:?}");
            owner.proxy.accept();
            reachable(&owner).await;
            gate.open();
            let answer = seen(&end(asked).await.expect("no panic"));
            assert_eq!(answer, late, "{takeover:?}");
            for app in [&owner, &other] {
                let retry = seen(&app.charge(&account).await);
                assert_eq!(retry, "201 run 1, replayed", "{takeover:?}");
            }
            assert_eq!(world.charges(&account).await, charges, "{takeover:?}");
            owner.assert_healthy().await;
            other.assert_healthy().await;
        }
    }))
    .await;
}

/// Waits until requests with other keys are served.
async fn reachable(app: &App) {
    until(|| async {
        let answer = app.charge(&new_account()).await;
        let is_served = answer.status() == StatusCode::CREATED;
        assert!(is_served || answer.rejection() == Some(RejectionKind::StoreUnavailable));
        is_served.then_some(())
    })
    .await;
}
