//! What becomes of a call by its status, which may be in the head or in the trailers, and of responses that tonic never makes.

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use tower::Layer;
use tower_idempotency::{
    GrpcStatus, IdempotencyLayer, RejectionKind, ResponsePolicy, Verdict, store::Takeover,
};

use crate::{
    is_unary,
    support::{
        Answer, Body, Runs,
        body::{Script, Step},
        handler::{answering, layer},
        send,
        spy::{Call, Spy},
    },
};

fn call(content_type: &str) -> Request<Body> {
    Request::post("/calls.v1.Calls/Unary")
        .header("content-type", content_type)
        .header("idempotency-key", "k")
        .body(Body::from("\0\0\0\0\x02{}"))
        .expect("a request")
}

fn fields(fields: &[(&'static str, &str)]) -> HeaderMap {
    let field = |(name, value): &(&'static str, &str)| {
        let value = HeaderValue::from_str(value).expect("a value");
        (HeaderName::from_static(name), value)
    };
    fields.iter().map(field).collect()
}

/// How a response tells its status.
#[derive(Clone, Debug)]
struct Told {
    http: u16,
    head: HeaderMap,
    steps: Vec<Step>,
}

impl Told {
    fn head(status: &[(&'static str, &str)]) -> Self {
        Self {
            http: 200,
            head: fields(status),
            steps: vec![],
        }
    }

    fn trailers(status: &[(&'static str, &str)]) -> Self {
        let steps = vec![Step::Data("message"), Step::Trailers(fields(status))];
        Self {
            http: 200,
            head: HeaderMap::new(),
            steps,
        }
    }

    fn with_http(mut self, status: u16) -> Self {
        self.http = status;
        self
    }

    fn with_head(mut self, head: &[(&'static str, &str)]) -> Self {
        self.head.extend(fields(head));
        self
    }

    fn response(&self) -> Response<Script> {
        let mut response = Response::new(Script::new(self.steps.clone()));
        *response.status_mut() = self.http.try_into().expect("a status");
        *response.headers_mut() = self.head.clone();
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert("content-type", grpc);
        response
    }
}

/// Sends one call to a handler that answers so.
async fn send_to(layer: IdempotencyLayer, told: &Told, verdict: Option<Verdict>) -> Answer {
    let told = told.clone();
    let handler = answering(&Runs::default(), move |_, _, _| {
        let mut response = told.response();
        verdict.map(|verdict| response.extensions_mut().insert(verdict));
        response
    });
    let service = layer.with_grpc_unary(is_unary).layer(handler);
    send(&service, call("application/grpc")).await
}

/// How the claim of a call that was answered so is settled.
async fn settled(told: &Told) -> Call {
    let store = Spy::new();
    send_to(layer(store.clone()), told, None).await;
    *store.calls().last().expect("a call")
}

const DISCARDED: [&str; 10] = ["3", "5", "6", "7", "8", "9", "10", "11", "12", "16"];
const UNKNOWN: [&str; 6] = ["1", "2", "4", "13", "14", "15"];

#[tokio::test]
async fn the_status_decides_whether_it_is_in_the_head_or_in_the_trailers() {
    let all = [("0", Call::Complete)]
        .into_iter()
        .chain(DISCARDED.map(|status| (status, Call::Release)))
        .chain(UNKNOWN.map(|status| (status, Call::Abandon)));
    let mut count = 0;
    for (status, end) in all {
        count += 1;
        for told in [
            Told::head(&[("grpc-status", status)]),
            Told::trailers(&[("grpc-status", status)]),
        ] {
            assert_eq!(settled(&told).await, end, "{told:?}");
        }
    }
    assert_eq!(count, 17);
}

#[tokio::test]
async fn a_200_without_a_readable_ok_is_no_success() {
    for status in ["", "00", "+0", "OK", "17", "0, 0", "-0"] {
        for told in [
            Told::head(&[("grpc-status", status)]),
            Told::trailers(&[("grpc-status", status)]),
        ] {
            assert_eq!(settled(&told).await, Call::Abandon, "{told:?}");
        }
    }
    let nothing = Told::trailers(&[]);
    let ends_early = Told {
        steps: vec![Step::Data("message")],
        ..nothing.clone()
    };
    assert_eq!(settled(&nothing).await, Call::Abandon);
    assert_eq!(settled(&ends_early).await, Call::Abandon);
}

#[tokio::test]
async fn statuses_that_contradict_each_other_are_no_success() {
    let ok = Told::trailers(&[("grpc-status", "0")]);
    let error = Told::trailers(&[("grpc-status", "5")]);
    let twice = Told::trailers(&[("grpc-status", "0"), ("grpc-status", "13")]);
    assert_eq!(settled(&ok.clone().with_http(500)).await, Call::Abandon);
    let head = &[("grpc-status", "5")];
    assert_eq!(settled(&ok.clone().with_head(head)).await, Call::Release);
    let head = &[("grpc-status", "0")];
    assert_eq!(settled(&error.with_head(head)).await, Call::Release);
    assert_eq!(settled(&ok.with_head(head)).await, Call::Complete);
    assert_eq!(settled(&twice).await, Call::Abandon);
}

#[tokio::test]
async fn an_answer_that_is_no_grpc_counts_as_what_clients_take_it_for() {
    for (http, end) in [
        (401, Call::Release),
        (403, Call::Release),
        (404, Call::Release),
        (400, Call::Abandon),
        (429, Call::Abandon),
        (500, Call::Abandon),
        (503, Call::Abandon),
        (201, Call::Abandon),
    ] {
        assert_eq!(
            settled(&Told::head(&[]).with_http(http)).await,
            end,
            "{http}"
        );
    }
}

#[tokio::test]
async fn a_policy_sees_the_status_that_is_in_the_trailers() {
    let policy = || {
        ResponsePolicy::by(|response| match response.extensions.get() {
            Some(GrpcStatus::FailedPrecondition) => Verdict::Save,
            Some(status) => status.verdict(),
            None => panic!("no status"),
        })
    };
    for (status, end) in [("9", Call::Complete), ("5", Call::Release)] {
        let store = Spy::new();
        let layer = layer(store.clone()).with_response_policy(policy());
        send_to(layer, &Told::trailers(&[("grpc-status", status)]), None).await;
        assert_eq!(store.calls().last(), Some(&end));
    }
    let store = Spy::new();
    let layer = layer(store.clone()).with_response_policy(ResponsePolicy::save_all());
    send_to(layer, &Told::trailers(&[("grpc-status", "13")]), None).await;
    assert_eq!(store.calls().last(), Some(&Call::Complete));
}

#[tokio::test]
async fn a_handlers_verdict_overrules_the_status() {
    for (status, verdict, end) in [
        ("0", Verdict::Discard, Call::Release),
        ("0", Verdict::Unknown, Call::Abandon),
        ("5", Verdict::Save, Call::Complete),
        ("13", Verdict::Tombstone, Call::Complete),
    ] {
        let store = Spy::new();
        let told = Told::trailers(&[("grpc-status", status)]);
        let answer = send_to(layer(store.clone()), &told, Some(verdict)).await;
        assert_eq!(store.calls().last(), Some(&end), "{verdict:?}");
        // The caller gets what the handler answered, whatever becomes of the key.
        assert_eq!(answer.text(), "message");
        assert_eq!(answer.trailers, Some(fields(&[("grpc-status", status)])));
    }
}

#[tokio::test]
async fn a_conflict_is_told_as_a_call_that_was_not_committed() {
    let told = Told::head(&[("grpc-status", "10")]);
    let answer = send_to(layer(Spy::new()), &told, Some(Verdict::Conflict)).await;
    assert_eq!(answer.rejection(), Some(RejectionKind::NotCommitted));
    assert_eq!(answer.head.headers["grpc-status"], "14");
    assert_eq!(answer.head.headers["idempotency-code"], "not_committed");
}

#[tokio::test]
async fn a_response_is_saved_and_replayed_with_its_trailers() {
    let runs = Runs::default();
    let told = Told::trailers(&[("grpc-status", "0"), ("x-receipt", "7"), ("x-receipt", "8")])
        .with_head(&[("x-shard", "2")]);
    let expected = told.clone();
    let handler = answering(&runs, move |_, _, _| told.response());
    let service = layer(Spy::new()).with_grpc_unary(is_unary).layer(handler);

    let first = send(&service, call("application/grpc+proto")).await;
    let again = send(&service, call("application/grpc+proto")).await;

    let Some(Step::Trailers(trailers)) = expected.steps.last() else {
        panic!("trailers");
    };
    assert_eq!(again.trailers.as_ref(), Some(trailers));
    assert_eq!(first.trailers, again.trailers);
    assert_eq!(first.body, again.body);
    assert_eq!(again.head.headers["x-shard"], "2");
    assert!(again.is_replay() && !first.is_replay());
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn what_a_call_to_another_service_told_of_its_key_is_not_passed_on_as_ours() {
    let codes = [
        ("idempotency-code", "in_flight"),
        ("idempotent-replayed", "true"),
    ];
    let in_head = Told::head(&[("grpc-status", "10")]).with_head(&codes);
    let mut trailers = codes.to_vec();
    trailers.push(("grpc-status", "10"));
    for told in [in_head, Told::trailers(&trailers)] {
        let answer = send_to(layer(Spy::new()), &told, None).await;
        let trailers = answer.trailers.unwrap_or_default();
        for (name, _) in codes {
            assert!(!answer.head.headers.contains_key(name), "{told:?}");
            assert!(!trailers.contains_key(name), "{told:?}");
        }
    }
}

#[tokio::test]
async fn a_response_that_is_too_large_to_keep_is_done_and_reaches_its_caller_whole() {
    let runs = Runs::default();
    let told = Told::trailers(&[("grpc-status", "0")]);
    let layer = layer(Spy::new()).with_response_body_limit(3);
    let handler = answering(&runs, move |_, _, _| told.response());
    let service = layer.with_grpc_unary(is_unary).layer(handler);

    let first = send(&service, call("application/grpc")).await;
    assert_eq!(first.text(), "message");
    assert_eq!(first.trailers, Some(fields(&[("grpc-status", "0")])));
    let again = send(&service, call("application/grpc")).await;
    assert_eq!(again.head.headers["idempotency-code"], "response_not_kept");
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_response_that_hangs_is_judged_by_its_head_if_that_tells_the_status() {
    let hanging = |head: &[(&'static str, &str)]| Told {
        steps: vec![Step::Data("message"), Step::Hang],
        ..Told::head(head)
    };
    for (told, end) in [
        (hanging(&[("grpc-status", "5")]), Call::Release),
        (hanging(&[("grpc-status", "13")]), Call::Abandon),
        (hanging(&[]), Call::Complete),
    ] {
        let store = Spy::new();
        let handler = answering(&Runs::default(), move |_, _, _| told.response());
        let service = layer(store.clone())
            .with_grpc_unary(is_unary)
            .layer(handler);
        let answered = tower::ServiceExt::oneshot(service, call("application/grpc")).await;
        drop(answered.expect("a response"));
        assert_eq!(store.calls().last(), Some(&end));
    }
}

#[tokio::test]
async fn a_response_that_breaks_off_is_a_handler_that_failed() {
    let told = Told {
        steps: vec![Step::Data("message"), Step::Fail],
        ..Told::head(&[])
    };
    let store = Spy::new();
    let answer = send_to(layer(store.clone()), &told, None).await;
    assert_eq!(answer.rejection(), Some(RejectionKind::HandlerFailed));
    assert_eq!(answer.head.headers["grpc-status"], "13");
    assert_eq!(store.calls().last(), Some(&Call::Abandon));
}

#[tokio::test]
async fn a_call_of_unknown_outcome_runs_again_where_a_takeover_is_allowed() {
    let runs = Runs::default();
    let handler = answering(&runs, |run, _, _| {
        let status = if run == 1 { "14" } else { "0" };
        Told::trailers(&[("grpc-status", status)]).response()
    });
    let layer = layer(Spy::new()).with_takeover(Takeover::RunAgain);
    let service = layer.with_grpc_unary(is_unary).layer(handler);
    for expected in ["14", "0", "0"] {
        let answer = send(&service, call("application/grpc")).await;
        assert_eq!(answer.trailers.expect("trailers")["grpc-status"], expected);
    }
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn grpc_web_and_other_content_types_that_begin_like_grpc_pass_through() {
    for content_type in [
        "application/grpc-web",
        "application/grpc-web+proto",
        "application/grpc-web-text",
        "application/grpcurl",
    ] {
        let (runs, store) = (Runs::default(), Spy::new());
        let handler = answering(&runs, |_, _, _| Told::head(&[]).response());
        let layer = layer(store.clone()).require_key();
        let service = layer.with_grpc_unary(is_unary).layer(handler);
        for _ in 0..2 {
            let answer = send(&service, call(content_type)).await;
            assert_eq!(answer.rejection(), None);
        }
        assert_eq!((runs.count(), store.calls()), (2, vec![]), "{content_type}");
    }
}

#[tokio::test]
async fn grpc_in_any_spelling_engages() {
    for content_type in [
        "application/grpc",
        "Application/gRPC",
        "application/grpc+proto",
        "application/grpc+json",
        "application/grpc; charset=utf-8",
    ] {
        let runs = Runs::default();
        let handler = answering(&runs, |_, _, _| {
            Told::trailers(&[("grpc-status", "0")]).response()
        });
        let service = layer(Spy::new()).with_grpc_unary(is_unary).layer(handler);
        send(&service, call(content_type)).await;
        assert!(send(&service, call(content_type)).await.is_replay());
        assert_eq!(runs.count(), 1, "{content_type}");
    }
}
