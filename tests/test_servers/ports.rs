use std::{collections::BTreeSet, io::ErrorKind, net::UdpSocket};

use crate::servers::Port;

#[test]
fn a_port_that_nobody_listens_on_is_still_its_owners() {
    let ports: Vec<Port> = (0..400).map(|_| Port::free()).collect();
    let numbers: BTreeSet<u16> = ports.iter().map(Port::number).collect();
    assert_eq!(numbers.len(), 400, "of 20000, some would meet");
}

#[test]
fn a_redis_has_the_port_of_a_cluster_node_too() {
    let port = Port::free_for_redis();
    let nodes = port.number() + 10_000;
    let taken = UdpSocket::bind(("127.0.0.1", nodes)).expect_err("its owner's");
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    assert!(nodes < 32_768, "Linux gives {nodes} to connections");
}
