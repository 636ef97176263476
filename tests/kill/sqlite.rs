use std::time::Duration;

use crate::{
    load::{Clients, Rules, kills, random_moment_within},
    payments_app::{App, Database},
};

/// The longest that the app lives.
const LIFE: Duration = Duration::from_millis(150);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_is_charged_once_however_often_the_app_is_killed() {
    let database = Database::sqlite();
    let mut app = App::start(&database).await;
    let clients = Clients::start(Rules::TRANSACTION, [app.address]);
    let kills = kills(10);
    for _ in 0..kills {
        random_moment_within(LIFE).await;
        app.kill().await;
        app = App::start(&database).await;
        clients.send_to([app.address]);
    }
    let charged = clients.finish().await;
    println!("SQLite: {kills} kills, {charged}");
    charged.assert_met_a_kill();
    charged.assert_charged_once(&database).await;
    charged.assert_recorded_once(&database).await;
}
