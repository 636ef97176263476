//! Two apps that share a database on a server of their own. The apps are killed, and the server is.

use std::time::Duration;

use tokio::task::block_in_place;

use crate::{
    load::{Clients, Rules, kills, random_below, random_moment_within},
    payments_app::{App, Database},
    servers::Server,
};

/// The longest time between two kills.
const LIFE: Duration = Duration::from_millis(300);

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_every_key_is_charged_once_whatever_is_killed() {
    let durable = ["fsync = on"];
    let start = || crate::servers::Postgres::start_with(&durable);
    if let Some(server) = block_in_place(start) {
        let database = Database::of_postgres(&server).await;
        every_key_is_charged_once("Postgres", &server, &database).await;
    }
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb_every_key_is_charged_once_whatever_is_killed() {
    let durable = [
        "innodb-flush-log-at-trx-commit = 1",
        "innodb-flush-method = fsync",
    ];
    let start = || crate::servers::MariaDb::start_with(&durable);
    if let Some(server) = block_in_place(start) {
        let database = Database::of_mariadb(&server).await;
        every_key_is_charged_once("MariaDB", &server, &database).await;
    }
}

async fn every_key_is_charged_once(name: &str, server: &Server, database: &Database) {
    let (one, other) = tokio::join!(App::start(database), App::start(database));
    let mut apps = [one, other];
    let addresses = |apps: &[App; 2]| apps.each_ref().map(|app| app.address);
    let clients = Clients::start(Rules::TRANSACTION, addresses(&apps));
    let (mut app_kills, mut server_kills) = (0, 0);
    for kill in 1..=kills(8) {
        random_moment_within(LIFE).await;
        if kill % 4 == 0 {
            block_in_place(|| {
                server.kill();
                server.restart();
            });
            server_kills += 1;
        } else {
            let app = &mut apps[random_below(2)];
            app.kill().await;
            *app = App::start(database).await;
            clients.send_to(addresses(&apps));
            app_kills += 1;
        }
    }
    let charged = clients.finish().await;
    println!("{name}: {app_kills} kills of an app, {server_kills} of the server, {charged}");
    charged.assert_met_a_kill();
    charged.assert_charged_once(database).await;
    charged.assert_recorded_once(database).await;
}
