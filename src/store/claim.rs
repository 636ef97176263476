use std::fmt;

use http::Extensions;
use uuid::Uuid;

use crate::{Fingerprint, RecordKey};

/// The right to run the handler for one key.
///
/// A store makes it in [`reserve`](super::Store::reserve); the layer passes it back with every later call.
#[derive(Clone, Debug)]
pub struct Claim {
    key: RecordKey,
    fingerprint: Fingerprint,
    nonce: Nonce,
    attempt: u32,
    fence: u64,
    interrupted: bool,
    attachments: Extensions,
}

impl Claim {
    /// A claim on `key` by the run that made `nonce`.
    ///
    /// `attempt` is 1 for the first run under the key, and one more with each takeover.
    /// `fence` only grows from claim to claim of one key.
    #[must_use]
    pub fn new(
        key: RecordKey,
        fingerprint: Fingerprint,
        nonce: Nonce,
        attempt: u32,
        fence: u64,
    ) -> Self {
        Self {
            key,
            fingerprint,
            nonce,
            attempt,
            fence,
            interrupted: false,
            attachments: Extensions::new(),
        }
    }

    /// Attaches a value that the layer puts into the request's extensions, for the handler.
    ///
    /// This is how a transaction store hands its transaction over. A second value of the same type replaces the first.
    #[must_use]
    pub fn with_attachment<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.attachments.insert(value);
        self
    }

    /// The record that is claimed.
    #[must_use]
    pub fn key(&self) -> &RecordKey {
        &self.key
    }

    /// The fingerprint of the request that claimed it.
    #[must_use]
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// Whose claim it is.
    #[must_use]
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// 1 for the first run under this key, one more with each takeover.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// A number that only grows from claim to claim of one key.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Whether the handler was dropped in mid-run, by its run limit, a panic or a dropped inline call.
    ///
    /// A connection that such a handler used may stand in the middle of a statement: close it, don't pool it.
    #[must_use]
    pub fn interrupted(&self) -> bool {
        self.interrupted
    }

    /// What the store attached.
    #[must_use]
    pub fn attachments(&self) -> &Extensions {
        &self.attachments
    }

    /// Marks the claim as [interrupted](Self::interrupted).
    pub fn set_interrupted(&mut self) {
        self.interrupted = true;
    }
}

/// 16 bytes that tell one claim from every other.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nonce([u8; 16]);

impl Nonce {
    /// A new one: a random UUID (version 4), of which 122 bits are random.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4().into_bytes())
    }

    /// The nonce with these bytes, as a store read them.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, for a store to write.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nonce({})", Uuid::from_bytes(self.0).simple())
    }
}
