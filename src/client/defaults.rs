//! Every default of the client side, each with its reason.

use std::time::Duration;

/// How often a request is sent at most: enough for lost connections and answers, few enough to add little to an outage. The pauses between
/// them are 3 s in all at most, unless the server asks for longer ones: to wait for a restart takes more attempts.
pub const ATTEMPTS: u32 = 5;
/// How long an attempt may take: longer than the server's slowest honest answer should be. A shorter one costs nothing but an answer
/// that comes by replay.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a call may take, with all its attempts and pauses: about as long as somebody waits for it.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// The bound of the pause before the first retry; it doubles with each one.
pub const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The bound that it doesn't grow beyond.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How old a key may be that is sent: an hour less than [our server keeps it](crate::defaults::RETENTION), for the attempt itself
/// and for what clocks and queues are wrong by.
pub const MAX_KEY_AGE: Duration = Duration::from_secs(23 * 60 * 60);
/// How many retries per second are always allowed: a client of a few calls isn't kept from retrying.
pub const RETRIES_PER_SECOND: u32 = 10;
/// How many retries are allowed beyond that, as a share of the calls: an outage makes a fifth of load more, not a multiple.
pub const RETRY_SHARE: f32 = 0.2;
/// The largest body that is held in memory, of a request to be sent again, or of an answer that may break off: as for the server.
pub const BODY_LIMIT: usize = crate::defaults::BODY_LIMIT;
