"""Calls `Unary` with grpcio's own retries, and prints what came of it: call.py ADDRESS KEY TEXT STATUS…

Retries on the named statuses. The client's own backoff is longer than the call may take, so that only the server's
pushback brings a retry in time.
"""

import json
import sys

import grpc

address, key, text, *statuses = sys.argv[1:]
config = {
    "methodConfig": [
        {
            "name": [{"service": "calls.v1.Calls"}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "600s",
                "maxBackoff": "600s",
                "backoffMultiplier": 1,
                "retryableStatusCodes": statuses,
            },
        }
    ]
}
options = [("grpc.service_config", json.dumps(config)), ("grpc.enable_http_proxy", 0)]
with grpc.insecure_channel(address, options=options) as channel:
    # Messages are bytes here: a field of text with the number 1.
    unary = channel.unary_unary("/calls.v1.Calls/Unary")
    message = bytes([10, len(text)]) + text.encode()
    try:
        reply, call = unary.with_call(message, metadata=[("idempotency-key", key)], timeout=60)
        metadata = {name: value for name, value in call.initial_metadata()}
        came = {"text": reply[2:].decode(), "replayed": metadata.get("idempotent-replayed") == "true"}
    except grpc.RpcError as error:
        metadata = {name: value for name, value in error.trailing_metadata()}
        came = {"status": error.code().name, "code": metadata.get("idempotency-code")}
print(json.dumps(came))
