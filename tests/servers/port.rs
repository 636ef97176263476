//! Ports that stay their owner's, also while nothing listens on them.

use std::net::{TcpListener, UdpSocket};

use uuid::Uuid;

/// A port of 127.0.0.1 for a server that may be down for a moment, or for good: nobody else who asks here gets it, in this process or
/// another, before this is dropped.
///
/// Who has a port here has the UDP port of the same number, which no server here uses: that one can be had while nobody listens.
/// It is no port that the system gives to outgoing connections: such a connection could take the port of a server that is
/// down. A client that tries again and again would even end up connected to itself.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _held: Vec<UdpSocket>,
}

impl Port {
    pub fn free() -> Self {
        Self::with(20_000, &[0])
    }

    /// The same for a Redis server. Where its settings make it a node of a cluster, it listens on the port that is higher by
    /// 10000, too.
    pub fn free_for_redis() -> Self {
        // The higher one isn't given to outgoing connections either.
        Self::with(12_000, &[0, 10_000])
    }

    pub fn number(&self) -> u16 {
        self.number
    }

    /// One of so many, of which those that are higher by this are to be had, too.
    fn with(count: u16, offsets: &[u16]) -> Self {
        loop {
            let number = 10_000 + random() % count;
            let held: Option<Vec<_>> = offsets.iter().map(|offset| hold(number + offset)).collect();
            if let Some(held) = held {
                return Self {
                    number,
                    _held: held,
                };
            }
        }
    }
}

fn hold(port: u16) -> Option<UdpSocket> {
    let held = UdpSocket::bind(("127.0.0.1", port)).ok()?;
    // A server that isn't of these tests may listen.
    TcpListener::bind(("127.0.0.1", port)).ok()?;
    Some(held)
}

fn random() -> u16 {
    let random = Uuid::new_v4();
    // These bytes hold nothing but chance.
    u16::from_le_bytes([random.as_bytes()[0], random.as_bytes()[1]])
}
