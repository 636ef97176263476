//! Whether the server may drop records before their time.

use redis::{ErrorKind, FromRedisValue, RedisError, ServerErrorKind, Value};

use super::{
    connections::{Connections, Message},
    error::failed,
};
use crate::{StoreError, StoreErrorKind};

/// Refuses a server, or a node of a cluster, that evicts.
pub(super) async fn refuse_eviction(connections: &Connections) -> Result<(), StoreError> {
    let mut command = redis::cmd("CONFIG");
    command.arg("GET").arg(SETTING);
    let answer = connections.send(Message::ToMasters(&command)).await;
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) if is_refused(&error) => {
            report_unknown(&failed(error));
            return Ok(());
        }
        Err(error) => return Err(failed(error)),
    };
    let nodes = if connections.is_cluster() {
        by_node(answer)
    } else {
        policy(answer).map(|policy| vec![policy])
    };
    for policy in nodes.map_err(failed)? {
        // `allkeys-*` and `volatile-*` alike: every record has an expiry.
        if policy != "noeviction" {
            let message = format!(
                "the server's {SETTING} is {policy}: it may drop the record of a key, whose operation then runs twice; \\
                 set it to noeviction, or say allow_eviction()"
            );
            return Err(StoreError::new(StoreErrorKind::Other, message));
        }
    }
    Ok(())
}

const SETTING: &str = "maxmemory-policy";

/// The answers of all nodes, by their addresses.
fn by_node(answer: Value) -> Result<Vec<String>, RedisError> {
    let nodes = Vec::<(String, Value)>::from_redis_value(answer)?;
    nodes
        .into_iter()
        .map(|(_, answer)| policy(answer))
        .collect()
}

/// The pair of the setting's name and value.
fn policy(answer: Value) -> Result<String, RedisError> {
    let settings = Vec::<(String, String)>::from_redis_value(answer)?;
    let found = settings.into_iter().find(|(name, _)| name == SETTING);
    Ok(found.map_or_else(|| "not told".to_owned(), |(_, value)| value))
}

/// Whether the server was asked, and doesn't tell: some providers keep `CONFIG` to themselves.
fn is_refused(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::ResponseError)
    )
}

#[cfg_attr(
    not(feature = "tracing"),
    expect(unused_variables, reason = "it is for the event")
)]
fn report_unknown(error: &StoreError) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        error = error as &(dyn std::error::Error + 'static),
        "the server doesn't tell whether it evicts records"
    );
}
