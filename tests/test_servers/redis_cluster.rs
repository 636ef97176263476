//! A Redis cluster.

use std::{collections::BTreeSet, net::TcpStream};

use redis::Client;

use crate::servers::{DURABLE, Redis, RedisCluster};

#[test]
fn three_masters_serve_all_keys_and_each_has_a_replica() {
    let Some(cluster) = RedisCluster::start() else {
        return;
    };
    assert_eq!(cluster.nodes().len(), 6);
    let mut roles = BTreeSet::new();
    for number in 0..100 {
        let key = format!("key-{number}");
        let (master, replica) = (cluster.master_of(&key), cluster.replica_of(&key));
        roles.insert((master.port(), replica.port()));
        set(master, &key, 1);
        assert_eq!(master.run(&["GET", &key]), Ok(1));
    }
    assert_eq!(roles.len(), 3);
    let ports = roles.iter().flat_map(|(master, replica)| [master, replica]);
    let ports: BTreeSet<_> = ports.copied().collect();
    let all: BTreeSet<_> = cluster.nodes().iter().map(|node| node.port()).collect();
    assert_eq!(ports, all);
}

#[test]
fn the_cluster_outlives_the_kill_of_a_master_with_what_was_replicated() {
    let Some(cluster) = RedisCluster::start_with(&DURABLE) else {
        return;
    };
    let (master, replica) = (cluster.master_of("key"), cluster.replica_of("key"));
    set(master, "key", 1);
    master.kill();
    cluster.settle();
    assert_eq!(cluster.master_of("key").port(), replica.port());
    assert_eq!(replica.run(&["GET", "key"]), Ok(1));
    let () = replica.run(&["SET", "key", "2"]).expect("a master");

    // What was killed comes back as a replica, and may be a master again.
    master.restart();
    cluster.settle();
    assert_eq!(cluster.replica_of("key").port(), master.port());
    cluster.fail_over("key");
    assert_eq!(cluster.master_of("key").port(), master.port());
    assert_eq!(master.run(&["GET", "key"]), Ok(2));
}

#[test]
fn the_replica_of_a_frozen_master_takes_over_and_what_wakes_up_follows_it() {
    let Some(cluster) = RedisCluster::start() else {
        return;
    };
    let (master, replica) = (cluster.master_of("key"), cluster.replica_of("key"));
    set(master, "key", 1);
    master.freeze();
    cluster.settle();
    assert_eq!(replica.run(&["GET", "key"]), Ok(1));
    let () = replica.run(&["SET", "key", "2"]).expect("a master");
    master.thaw();
    cluster.settle();
    assert_eq!(cluster.master_of("key").port(), replica.port());
    assert_eq!(cluster.replica_of("key").port(), master.port());
}

#[test]
fn a_cluster_is_gone_when_it_was_dropped() {
    let Some(cluster) = RedisCluster::start() else {
        return;
    };
    let nodes = cluster.nodes().iter();
    let nodes: Vec<_> = nodes
        .map(|node| (node.directory().to_owned(), node.port()))
        .collect();
    cluster.master_of("key").kill();
    drop(cluster);
    for (directory, port) in nodes {
        assert!(!directory.exists());
        TcpStream::connect(("127.0.0.1", port)).expect_err("nobody listens");
    }
}

/// And waits until the replica has it.
fn set(master: &Redis, key: &str, value: i32) {
    let client = Client::open(master.url()).expect("a URL");
    let mut connection = client.get_connection().expect("a connection");
    let mut commands = redis::pipe();
    commands.cmd("SET").arg(key).arg(value).ignore();
    commands.cmd("WAIT").arg(1).arg(10_000);
    let replicas: [i32; 1] = commands.query(&mut connection).expect("answers");
    assert_eq!(replicas, [1]);
}
