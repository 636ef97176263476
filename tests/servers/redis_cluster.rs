//! A Redis cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use redis::{
    FromRedisValue, RedisResult,
    cluster::{ClusterClientBuilder, NodeAddress},
};

use super::{external, process::until, proxy::Proxy, redis::Redis, url};

/// A node that is silent for this long (ms) is taken for dead; its replica follows it about a second later.
const SETTINGS: [&str; 5] = [
    "cluster-enabled yes",
    "cluster-announce-ip 127.0.0.1",
    "cluster-node-timeout 1500",
    // However long a replica was without its master, it may follow it.
    "cluster-replica-validity-factor 0",
    // Each stays with its master.
    "cluster-migration-barrier 10",
];
const MASTERS: usize = 3;
const SLOTS: usize = 16_384;

/// Three masters and a replica of each. They end and leave nothing when it is dropped.
///
/// Each method blocks its thread; those that wait do so until all nodes that run (were neither killed nor frozen) agree.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts a private cluster. `None` if there is no Redis on this machine.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// Starts a private cluster with settings of `redis.conf` for all nodes.
    pub fn start_with(settings: &[&str]) -> Option<Self> {
        let settings = [&SETTINGS, settings].concat();
        let start = || Redis::started("redis", &settings);
        let nodes: Option<Vec<_>> = (0..2 * MASTERS).map(|_| start()).collect();
        let Some(nodes) = nodes else {
            return external::missing("Redis");
        };
        let cluster = Self { nodes };
        cluster.join();
        Some(cluster)
    }

    /// Of all nodes, for a client of the cluster.
    pub fn urls(&self) -> Vec<String> {
        self.nodes
            .iter()
            .map(|node| node.url().to_owned())
            .collect()
    }

    /// A proxy before each node, in their order, and a client to be built that reaches the nodes through them.
    pub fn proxied(&self) -> (Vec<Proxy>, ClusterClientBuilder) {
        let start = |node: &Redis| Proxy::start(node.url());
        let proxies: Vec<_> = self.nodes.iter().map(start).collect();
        let urls = proxies.iter().map(Proxy::url);
        let address = |url| url::address(url).parse::<NodeAddress>();
        let pairs = self.nodes.iter().zip(&proxies);
        let map = pairs.map(|(node, proxy)| Ok((address(node.url())?, address(proxy.url())?)));
        let map: RedisResult<_> = map.collect();
        let client = ClusterClientBuilder::new(urls.collect::<Vec<_>>());
        (proxies, client.node_address_map(map.expect("addresses")))
    }

    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The node that serves the key, as far as the others know yet.
    pub fn master_of(&self, key: &str) -> &Redis {
        let node = self.running().next().expect("a node that runs");
        let slot: u16 = ask(node, &["CLUSTER", "KEYSLOT", key]);
        let owners = View::of(node).owners;
        let owner = owners.iter().find(|(slots, _)| slots.contains(&slot));
        self.at(owner.expect("a master").1)
    }

    /// The node that gets what the master of the key has.
    pub fn replica_of(&self, key: &str) -> &Redis {
        let master = self.master_of(key).port();
        let node = self.running().next().expect("a node that runs");
        let view = View::of(node);
        let replica = view.masters.iter().find(|(_, of)| **of == master);
        self.at(*replica.expect("a replica").0)
    }

    /// Has the replica take over from the key's master, which runs; nothing that it acknowledged is lost.
    pub fn fail_over(&self, key: &str) {
        let replica = self.replica_of(key);
        let () = ask(replica, &["CLUSTER", "FAILOVER"]);
        until("a failover", || {
            self.master_of(key).port() == replica.port()
        });
        self.settle();
    }

    /// Waits until the cluster serves all keys by nodes that run, and their replicas that run follow them.
    pub fn settle(&self) {
        until("a cluster that serves", || {
            let running: BTreeSet<_> = self.running().map(|node| node.port()).collect();
            let views: Vec<_> = self.running().map(View::of).collect();
            let same = views.windows(2).all(|pair| pair[0] == pair[1]);
            same && views[0].rests_on(&running) && self.running().all(|node| views[0].serves(node))
        });
    }

    /// Makes one cluster of nodes that know nothing yet.
    fn join(&self) {
        let (masters, replicas) = self.nodes.split_at(MASTERS);
        let first = self.nodes[0].port().to_string();
        for (number, node) in self.nodes.iter().enumerate() {
            let epoch = (number + 1).to_string();
            let () = ask(node, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
            if number > 0 {
                let () = ask(node, &["CLUSTER", "MEET", "127.0.0.1", &first]);
            }
        }
        for (number, master) in masters.iter().enumerate() {
            let [start, end] = [number, number + 1].map(|number| number * SLOTS / MASTERS);
            let slots: Vec<_> = (start..end).map(|slot| slot.to_string()).collect();
            let slots = slots.iter().map(String::as_str);
            let command: Vec<_> = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots).collect();
            let () = ask(master, &command);
        }
        for (master, replica) in masters.iter().zip(replicas) {
            let id: String = ask(master, &["CLUSTER", "MYID"]);
            // It must know it first.
            let command = ["CLUSTER", "REPLICATE", &id];
            until("an acquaintance", || replica.run::<()>(&command).is_ok());
        }
        self.settle();
    }

    fn running(&self) -> impl Iterator<Item = &Redis> {
        self.nodes.iter().filter(|node| node.runs())
    }

    fn at(&self, port: u16) -> &Redis {
        let node = self.nodes.iter().find(|node| node.port() == port);
        node.expect("a node of this cluster")
    }
}

/// What a node knows of the others, by their ports.
#[derive(PartialEq)]
struct View {
    /// The masters, by their slots.
    owners: Vec<(RangeInclusive<u16>, u16)>,
    /// The masters, by their replicas.
    masters: BTreeMap<u16, u16>,
}

impl View {
    fn of(node: &Redis) -> Self {
        let nodes: String = ask(node, &["CLUSTER", "NODES"]);
        let lines: Vec<Vec<_>> = nodes
            .lines()
            .map(|line| line.split(' ').collect())
            .collect();
        let ports = lines.iter().map(|line| (line[0], port(line[1])));
        let ports: BTreeMap<_, _> = ports.collect();
        let owners = lines.iter().flat_map(|line| {
            let slots = line.iter().skip(8).filter_map(|slots| range(slots));
            slots.map(|slots| (slots, port(line[1])))
        });
        let mut owners: Vec<_> = owners.collect();
        owners.sort_by_key(|(slots, _)| *slots.start());
        let masters = lines.iter();
        let masters = masters.filter_map(|line| Some((port(line[1]), *ports.get(line[3])?)));
        Self {
            masters: masters.collect(),
            owners,
        }
    }

    /// Whether these are the masters, and all of the others are replicas of them.
    fn rests_on(&self, running: &BTreeSet<u16>) -> bool {
        let owners: BTreeSet<_> = self.owners.iter().map(|(_, owner)| *owner).collect();
        let masters: BTreeSet<_> = self.masters.values().copied().collect();
        let has_role = |node| owners.contains(node) || self.masters.contains_key(node);
        owners.is_subset(running) && masters.is_subset(&owners) && running.iter().all(has_role)
    }

    fn serves(&self, node: &Redis) -> bool {
        let info: String = ask(node, &["CLUSTER", "INFO"]);
        let is_replica = self.masters.contains_key(&node.port());
        info.contains("cluster_state:ok") && (!is_replica || node.has_caught_up())
    }
}

fn ask<T: FromRedisValue>(node: &Redis, command: &[&str]) -> T {
    node.run(command).expect("an answer of the node")
}

/// Of `127.0.0.1:port@higher`.
fn port(address: &str) -> u16 {
    let (_, port) = address.split_once(':').expect("a port");
    let digits = port.split(['@', ',']).next().unwrap_or_default();
    digits.parse().expect("a number")
}

/// None of a slot that moves.
fn range(slots: &str) -> Option<RangeInclusive<u16>> {
    let (start, end) = slots.split_once('-').unwrap_or((slots, slots));
    Some(start.parse().ok()?..=end.parse().ok()?)
}
