//! The layer in an axum `Router`: every place to put it, the extractors, the verdict as a response part.
#![cfg(all(feature = "memory", feature = "axum"))]

mod support;

use axum::{
    Extension, Router,
    extract::{FromRequestParts, Request, State},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{StatusCode, request::Builder};
use support::{Answer, Runs, handler::layer, send, spy::Spy};
use tower_idempotency::{
    IdempotencyContext, IdempotencyLayer, MemoryStore, MissingContext, RejectionKind, ScopeBy,
    Verdict,
};

async fn ask(app: &Router, request: Builder) -> Answer {
    let request = request.body(axum::body::Body::from("{}"));
    send(app, request.expect("a valid request")).await
}

fn keyed(path: &str) -> Builder {
    Request::post(path).header("idempotency-key", "k")
}

async fn create(State(runs): State<Runs>) -> (StatusCode, String) {
    (StatusCode::CREATED, format!("run {}", runs.add()))
}

#[tokio::test]
async fn the_layer_works_wherever_a_router_takes_layers() {
    let idempotency = || layer(MemoryStore::new());
    let route = || Router::<Runs>::new().route("/charges", post(create));
    let routers: [(&str, &str, Router<Runs>); 6] = [
        ("layer", "/charges", route().layer(idempotency())),
        (
            "route_layer",
            "/charges",
            route().route_layer(idempotency()),
        ),
        (
            "of one method",
            "/charges",
            Router::new().route("/charges", post(create).layer(idempotency())),
        ),
        (
            "nest",
            "/api/charges",
            Router::new().nest("/api", route().layer(idempotency())),
        ),
        (
            "around a nest",
            "/api/charges",
            Router::new().nest("/api", route()).layer(idempotency()),
        ),
        (
            "fallback",
            "/other",
            Router::new().fallback(create).layer(idempotency()),
        ),
    ];
    for (name, path, router) in routers {
        let runs = Runs::default();
        let app = router.with_state(runs.clone());

        let first = ask(&app, keyed(path)).await;
        let replay = ask(&app, keyed(path)).await;

        assert_eq!(
            (first.status(), first.text()),
            (StatusCode::CREATED, "run 1"),
            "{name}"
        );
        assert!(replay.is_replay(), "{name}");
        assert_eq!(replay.text(), "run 1");
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test]
async fn a_route_layer_leaves_unknown_paths_to_the_router() {
    let store = Spy::new();
    let app = Router::new()
        .route("/charges", post(create))
        .route_layer(layer(store.clone()).require_key())
        .with_state(Runs::default());

    let unknown = ask(&app, Request::post("/nowhere")).await;

    assert_eq!(unknown.status(), StatusCode::NOT_FOUND);
    assert_eq!(store.calls(), []);
}

#[tokio::test]
async fn a_nest_changes_no_fingerprint_and_never_merges_two_paths() {
    let (runs, store) = (Runs::default(), MemoryStore::new());
    let idempotency = || layer(store.clone());
    let route = || Router::<Runs>::new().route("/x", post(create));
    let outer = Router::new().nest("/api", route()).layer(idempotency());
    let inner = Router::new().nest("/api", route().layer(idempotency()));
    let two = Router::new()
        .nest("/a", route().layer(idempotency()))
        .nest("/b", route().layer(idempotency()));
    let [outer, inner, two] = [outer, inner, two].map(|router| router.with_state(runs.clone()));

    assert_eq!(ask(&outer, keyed("/api/x")).await.text(), "run 1");
    assert!(ask(&inner, keyed("/api/x")).await.is_replay());

    let other = || Request::post("/a/x").header("idempotency-key", "l");
    assert_eq!(ask(&two, other()).await.text(), "run 2");
    let across = ask(&two, other().uri("/b/x")).await;
    assert_eq!(across.rejection(), Some(RejectionKind::KeyReused));
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn authentication_outside_tells_the_scope() {
    #[derive(Clone)]
    struct Principal(String);

    async fn auth(mut request: Request, next: Next) -> Response {
        let token = request.headers().get("authorization");
        let Some(name) = token.and_then(|value| value.to_str().ok()) else {
            return StatusCode::UNAUTHORIZED.into_response();
        };
        let principal = Principal(name.to_owned());
        request.extensions_mut().insert(principal);
        next.run(request).await
    }

    async fn charge(Extension(Principal(name)): Extension<Principal>) -> String {
        name
    }

    let scope = ScopeBy::extension(|Principal(name): &Principal| name.clone());
    let idempotency = IdempotencyLayer::new(MemoryStore::new(), scope).require_key();
    let app = Router::new()
        .route("/charges", post(charge))
        .route_layer(idempotency)
        .layer(from_fn(auth));
    let as_caller = |name: &str| keyed("/charges").header("authorization", name);

    assert_eq!(ask(&app, as_caller("alice")).await.text(), "alice");
    assert_eq!(ask(&app, as_caller("bob")).await.text(), "bob");
    assert!(ask(&app, as_caller("alice")).await.is_replay());
    assert_eq!(
        ask(&app, keyed("/charges")).await.status(),
        StatusCode::UNAUTHORIZED
    );
}

async fn demanding(context: IdempotencyContext) -> String {
    context.key().as_str().to_owned()
}

async fn optional(context: Option<IdempotencyContext>) -> &'static str {
    context.map_or("unkeyed", |_| "keyed")
}

#[tokio::test]
async fn the_context_is_an_extractor_also_as_an_option() {
    let app = Router::new()
        .route("/demanding", post(demanding))
        .route("/optional", post(optional))
        .layer(layer(MemoryStore::new()));
    let named = |path: &str, key: &str| Request::post(path).header("idempotency-key", key);

    assert_eq!(ask(&app, named("/demanding", "k")).await.text(), "k");
    assert_eq!(ask(&app, named("/optional", "l")).await.text(), "keyed");
    assert_eq!(
        ask(&app, Request::post("/optional")).await.text(),
        "unkeyed"
    );

    let missing = ask(&app, Request::post("/demanding")).await;
    let without_layer = Router::new().route("/demanding", post(demanding));
    let unguarded = ask(&without_layer, named("/demanding", "k")).await;
    for answer in [missing, unguarded] {
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(
            answer.text().contains("no idempotency context"),
            "{}",
            answer.text()
        );
    }
}

#[tokio::test]
async fn a_missing_context_can_be_told_from_other_rejections() {
    let (mut parts, ()) = Request::new(()).into_parts();
    let extracted: Result<_, MissingContext> =
        <IdempotencyContext as FromRequestParts<()>>::from_request_parts(&mut parts, &()).await;
    assert!(extracted.is_err());
}

#[tokio::test]
async fn a_verdict_is_a_response_part() {
    async fn credentials(State(runs): State<Runs>) -> impl IntoResponse {
        (
            StatusCode::CREATED,
            Verdict::Tombstone,
            format!("secret {}", runs.add()),
        )
    }
    async fn taken(State(runs): State<Runs>) -> (StatusCode, Verdict, String) {
        (
            StatusCode::CONFLICT,
            Verdict::Save,
            format!("taken {}", runs.add()),
        )
    }

    let runs = Runs::default();
    let app = Router::new()
        .route("/credentials", post(credentials))
        .route("/taken", post(taken))
        .layer(layer(MemoryStore::new()))
        .with_state(runs.clone());
    let other = || Request::post("/taken").header("idempotency-key", "l");

    assert_eq!(ask(&app, keyed("/credentials")).await.text(), "secret 1");
    let again = ask(&app, keyed("/credentials")).await;
    assert_eq!(again.rejection(), Some(RejectionKind::ResponseNotKept));
    assert_eq!(ask(&app, other()).await.text(), "taken 2");
    assert!(ask(&app, other()).await.is_replay());
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn a_verdict_may_be_left_open() {
    async fn charge(State(runs): State<Runs>) -> (StatusCode, Option<Verdict>, &'static str) {
        let verdict = (runs.add() == 1).then_some(Verdict::Conflict);
        (StatusCode::CREATED, verdict, "charged")
    }

    let runs = Runs::default();
    let app = Router::new()
        .route("/charges", post(charge))
        .layer(layer(MemoryStore::new()))
        .with_state(runs.clone());

    let lost = ask(&app, keyed("/charges")).await;
    assert_eq!(lost.rejection(), Some(RejectionKind::NotCommitted));
    assert_eq!(ask(&app, keyed("/charges")).await.text(), "charged");
    assert!(ask(&app, keyed("/charges")).await.is_replay());
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn a_websocket_upgrade_is_not_touched() {
    use axum::extract::ws::WebSocketUpgrade;

    async fn socket(
        upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
    ) -> String {
        // Without a connection there is nothing to upgrade; it must be the first thing that is missing.
        upgrade
            .err()
            .map(|rejection| rejection.to_string())
            .unwrap_or_default()
    }

    let app = Router::new()
        .route("/socket", get(socket))
        .layer(layer(MemoryStore::new()).require_key());
    let request = Request::get("/socket")
        .header("idempotency-key", "k")
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");

    let answer = ask(&app, request).await;

    assert!(answer.text().contains("upgrade"), "{}", answer.text());
    assert_eq!(answer.rejection(), None);
}
