use std::collections::BTreeSet;

use crate::servers::Port;

#[test]
fn a_port_that_nobody_listens_on_is_still_its_owners() {
    let ports: Vec<Port> = (0..400).map(|_| Port::free()).collect();
    let numbers: BTreeSet<u16> = ports.iter().map(Port::number).collect();
    assert_eq!(numbers.len(), 400, "of 20000, some would meet");
}
