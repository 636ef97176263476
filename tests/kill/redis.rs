//! Two apps that keep their keys in a Redis server and their charges in a SQLite database. The apps are killed, or the server is.

use std::time::Duration;

use tokio::task::block_in_place;

use crate::{
    load::{Clients, Outcome, Rules, kills, random_below, random_moment_within},
    payments_app::{App, Database},
    servers::{DURABLE, Redis},
};

/// How long a killed app blocks its keys. What the apps are told, in seconds, is [`LEASE_TEXT`].
pub(crate) const LEASE: Duration = Duration::from_secs(3);
pub(crate) const LEASE_TEXT: &str = "3";
/// The longest time between two kills.
const LIFE: Duration = Duration::from_millis(500);

/// Many, since those that met a kill wait for the end of a lease.
pub(crate) const RULES: Rules = Rules {
    clients: 24,
    pause: Duration::from_millis(100),
    may_be_unknown: false,
    // What the killed app sent last may take a moment.
    longest_blocked: LEASE.saturating_add(Duration::from_secs(2)),
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refuse_charges_every_key_at_most_once_whichever_app_is_killed() {
    let may_be_unknown = true;
    let rules = Rules {
        may_be_unknown,
        ..RULES
    };
    apps_are_killed("refuse", rules).await;
}

/// Once, because its handler looks what the run before it did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_again_charges_every_key_once_whichever_app_is_killed() {
    apps_are_killed("run-again", RULES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refuse_loses_no_claim_and_no_response_when_a_durable_server_is_killed() {
    let may_be_unknown = true;
    let rules = Rules {
        may_be_unknown,
        ..RULES
    };
    the_server_is_killed("refuse", rules).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_again_loses_no_claim_and_no_response_when_a_durable_server_is_killed() {
    the_server_is_killed("run-again", RULES).await;
}

async fn apps_are_killed(takeover: &str, rules: Rules) {
    let Some(redis) = block_in_place(Redis::start) else {
        return;
    };
    let database = Database::sqlite();
    let start = || start(&database, &redis, takeover);
    let charged = killing_apps(rules, start, |_| {}).await;
    let unknown = charged.assert_charged_once(&database).await;
    println!(
        "Redis, {takeover}: {} kills of an app, {unknown} charges of unknown outcome, {charged}",
        kills(8)
    );
}

async fn the_server_is_killed(takeover: &str, rules: Rules) {
    // No app dies here. But a claim whose answer a kill took isn't always given back.
    let rules = Rules {
        clients: 6,
        longest_blocked: Duration::MAX,
        ..rules
    };
    let Some(redis) = block_in_place(|| Redis::start_with(&DURABLE)) else {
        return;
    };
    let database = Database::sqlite();
    let start = || start(&database, &redis, takeover);
    let (one, other) = tokio::join!(start(), start());
    let clients = Clients::start(rules, [one.address, other.address]);
    let kills = kills(4);
    for _ in 0..kills {
        random_moment_within(LIFE).await;
        block_in_place(|| {
            redis.kill();
            redis.restart();
        });
    }
    let charged = clients.finish().await;
    charged.assert_met_an_outage();
    let unknown = charged.assert_charged_once(&database).await;
    println!(
        "Redis, {takeover}: {kills} kills of the server, {unknown} charges of unknown outcome, {charged}"
    );
}

async fn start(database: &Database, redis: &Redis, takeover: &str) -> App {
    let environment = [
        ("STORE_URL", redis.url()),
        ("TAKEOVER", takeover),
        ("LEASE", LEASE_TEXT),
    ];
    App::start_with(database, &environment).await
}

/// Charges at two apps, which are killed at random moments and started again.
pub(crate) async fn killing_apps(
    rules: Rules,
    start: impl AsyncFn() -> App,
    before_kill: impl Fn(&App),
) -> Outcome {
    let (one, other) = tokio::join!(start(), start());
    let mut apps = [one, other];
    let addresses = |apps: &[App; 2]| apps.each_ref().map(|app| app.address);
    let clients = Clients::start(rules, addresses(&apps));
    for _ in 0..kills(8) {
        random_moment_within(LIFE).await;
        let app = &mut apps[random_below(2)];
        before_kill(app);
        app.kill().await;
        *app = start().await;
        clients.send_to(addresses(&apps));
    }
    let charged = clients.finish().await;
    charged.assert_met_a_kill();
    charged
}
