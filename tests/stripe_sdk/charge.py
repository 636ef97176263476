"""Makes a charge with Stripe's SDK, and prints what came of it: charge.py API_BASE TIMEOUT AMOUNT [KEY]."""

import json
import sys

import stripe

base, timeout, amount, *key = sys.argv[1:]
stripe.api_key = "sk_test_shop"
stripe.api_base = base
stripe.default_http_client = stripe.RequestsClient(timeout=float(timeout))
stripe.enable_telemetry = False
stripe.max_network_retries = 4
# Tells of each retry, on the error output.
stripe.log = "info"

options = {"idempotency_key": key[0]} if key else {}
try:
    charge = stripe.Charge.create(amount=amount, currency="eur", source="tok_visa", **options)
    headers = charge.last_response.headers
    replayed = headers.get("Idempotent-Replayed") == "true"
    came = {"id": charge.id, "amount": charge.amount, "replayed": replayed}
except stripe.StripeError as error:
    came = {"error": type(error).__name__, "status": error.http_status}
print(json.dumps(came))
