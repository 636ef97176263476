use tonic::{
    Request, Status,
    metadata::{AsciiMetadataValue, MetadataMap},
    transport::Channel,
};

use crate::{
    BoxError,
    payments::{ChargeRequest, Charged, ListChargesRequest, payments_client::PaymentsClient},
};

/// Charges Alice. The key is the caller's, who keeps it for the next attempt.
pub(crate) async fn charge(
    address: &str,
    key: &str,
    amount: i64,
    card: &str,
) -> Result<(), BoxError> {
    let mut request = as_alice(ChargeRequest {
        amount,
        currency: "eur".into(),
        card: card.into(),
    });
    let key = AsciiMetadataValue::try_from(key)?;
    request.metadata_mut().insert("idempotency-key", key);
    match connect(address).await?.charge(request).await {
        Ok(reply) => {
            let replayed = reply.metadata().contains_key("idempotent-replayed");
            let mark = if replayed { " (replayed)" } else { "" };
            println!("{}{mark}", line(reply.get_ref()));
        }
        Err(status) => println!("{}", failure(&status)),
    }
    Ok(())
}

/// Lists Alice's charges.
pub(crate) async fn list(address: &str) -> Result<(), BoxError> {
    let request = as_alice(ListChargesRequest {});
    let reply = connect(address).await?.list_charges(request).await?;
    let mut charges = reply.into_inner();
    while let Some(charge) = charges.message().await? {
        println!("{}", line(&charge));
    }
    Ok(())
}

async fn connect(address: &str) -> Result<PaymentsClient<Channel>, tonic::transport::Error> {
    PaymentsClient::connect(format!("http://{address}")).await
}

fn as_alice<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let alice = AsciiMetadataValue::from_static("alice");
    request.metadata_mut().insert("x-account", alice);
    request
}

fn line(charge: &Charged) -> String {
    format!(
        "charge {}: {} {}",
        charge.id, charge.amount, charge.currency
    )
}

/// With the code of the layer, if it was the layer that refused the call.
fn failure(status: &Status) -> String {
    let text = format!("{:?}: {}", status.code(), status.message());
    match code(status.metadata()) {
        Some(code) => format!("{text} ({code})"),
        None => text,
    }
}

fn code(metadata: &MetadataMap) -> Option<&str> {
    metadata.get("idempotency-code")?.to_str().ok()
}
