use axum::{
    Router,
    http::{HeaderName, HeaderValue, header},
    routing::{MethodRouter, get},
};
use tower_http::set_header::SetResponseHeaderLayer;

use crate::BoxError;

const SCRIPTS: [(&str, &str); 5] = [
    ("/cart.js", include_str!("page/cart.js")),
    ("/checkout.js", include_str!("page/checkout.js")),
    ("/pay.js", include_str!("page/pay.js")),
    ("/purchase.js", include_str!("page/purchase.js")),
    ("/view.js", include_str!("page/view.js")),
];

/// The page, and where it finds the API: at its own origin, or at this one.
pub(crate) fn router(api: &str) -> Result<Router, BoxError> {
    // Scripts, styles and connections of these origins, and nothing else.
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self' {api}; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let index = include_str!("page/index.html").replace("{api}", api);
    let mut router = Router::new()
        .route("/", file("text/html; charset=utf-8", index))
        .route(
            "/style.css",
            file("text/css", include_str!("page/style.css")),
        );
    for (path, script) in SCRIPTS {
        router = router.route(path, file("text/javascript; charset=utf-8", script));
    }
    Ok(router
        .layer(always(header::CONTENT_SECURITY_POLICY, policy.parse()?))
        .layer(always(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ))
        // Page and scripts belong together: an old one isn't mixed with a new one.
        .layer(always(
            header::CACHE_CONTROL,
            HeaderValue::from_static("no-cache"),
        )))
}

fn file(content_type: &'static str, text: impl Into<String>) -> MethodRouter {
    let text = text.into();
    get(async move || ([(header::CONTENT_TYPE, content_type)], text))
}

fn always(name: HeaderName, value: HeaderValue) -> SetResponseHeaderLayer<HeaderValue> {
    SetResponseHeaderLayer::overriding(name, value)
}
