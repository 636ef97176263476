//! The page in a browser, behind a proxy that sees what it sends.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use serde_json::{Value, json};
use tokio::time::{interval, timeout};
use uuid::Uuid;

use crate::{
    browser::Browser,
    http_proxy::{Fault, Proxy, Request},
    server::LIMIT,
    servers::{Port, chromium},
    shop::Shop,
};

pub(crate) struct Checkout {
    pub(crate) shop: Shop,
    pub(crate) proxy: Proxy,
    pub(crate) browser: Browser,
    pub(crate) url: String,
}

impl Checkout {
    /// With the page open. `None` if there is no Chromium on this machine.
    pub(crate) async fn open() -> Option<Self> {
        let chromium = tokio::task::block_in_place(chromium)?;
        let shop = Shop::start().await;
        let proxy = Proxy::start(shop.address).await;
        // All names below it are this machine.
        let host = format!("{}.localhost", Uuid::new_v4());
        let url = format!("http://{host}:{}/", proxy.address().port());
        Some(Self::of(shop, proxy, Browser::start(chromium).await, url).await)
    }

    /// The page and the API are two origins, and the proxy is before the API.
    pub(crate) async fn open_with_two_origins() -> Option<Self> {
        let chromium = tokio::task::block_in_place(chromium)?;
        let port = Port::free();
        let api = SocketAddr::from(([127, 0, 0, 1], port.number()));
        let proxy = Proxy::start(api).await;
        let told = format!("http://{}", proxy.address());
        let shop = Shop::start_with(&[("API_ADDR", &api.to_string()), ("API_URL", &told)]).await;
        let url = format!("http://{}/", shop.address);
        Some(Self::of(shop, proxy, Browser::start(chromium).await, url).await)
    }

    async fn of(shop: Shop, proxy: Proxy, browser: Browser, url: String) -> Self {
        let checkout = Self {
            shop,
            proxy,
            browser,
            url,
        };
        checkout.load().await;
        checkout
    }

    /// Opens the page, which shows the cart.
    pub(crate) async fn load(&self) {
        self.browser.open(&self.url).await;
        self.browser.find("#cart:not([hidden]) #pay:enabled").await;
    }

    pub(crate) async fn close(self) {
        self.browser.leave().await;
    }

    /// What becomes of the next requests to charge.
    pub(crate) fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        self.proxy.script("POST /charges", faults);
    }

    /// Charges, and the page never hears of it, however often it asks.
    pub(crate) async fn pay_without_an_answer(&self) {
        let lost = [Fault::LoseAnswer].into_iter();
        self.script(lost.chain(vec![Fault::LoseRequest; 30]));
        self.browser.click("pay").await;
        self.ends("unanswered").await;
    }

    /// All requests to charge, as the proxy got them.
    pub(crate) fn sent(&self) -> Vec<Request> {
        self.proxy.requests("POST /charges")
    }

    /// Waits until so many came.
    pub(crate) async fn has_sent(&self, count: usize) {
        let mut looks = interval(Duration::from_millis(10));
        let sent = async {
            while self.sent().len() < count {
                looks.tick().await;
            }
        };
        timeout(LIMIT, sent).await.expect("requests");
    }

    /// Of all these requests, which are the same byte for byte as far as it counts.
    pub(crate) fn key_of(requests: &[Request]) -> String {
        let keys: BTreeSet<String> = requests.iter().map(Request::key).collect();
        let bodies: BTreeSet<&[u8]> = requests.iter().map(|sent| &*sent.body).collect();
        assert_eq!((keys.len(), bodies.len()), (1, 1), "{keys:?}");
        keys.into_iter().next().expect("one")
    }

    /// Waits for this kind of outcome.
    pub(crate) async fn ends(&self, kind: &str) {
        let result = format!("#result[data-kind={kind}]:not([hidden])");
        self.browser.find(&result).await;
    }

    /// Waits for the page that says so, and tells the charge's id.
    pub(crate) async fn charged_once(&self) -> String {
        self.ends("charged").await;
        assert_eq!(self.browser.text("title").await, "Charged once");
        self.browser.text("charge").await
    }

    /// Goes back to the cart.
    pub(crate) async fn start_anew(&self) {
        self.browser.click("new").await;
        self.browser.find("#result[hidden]").await;
        self.browser.find("#pay:enabled").await;
    }

    /// Sets the number of an item in the cart.
    pub(crate) async fn put(&self, item: &str, count: u32) {
        let field = self.browser.find(&format!("#{item}:enabled")).await;
        field.clear().await.expect("an empty field");
        field.send_keys(&count.to_string()).await.expect("a number");
    }

    /// The purchase as the browser keeps it.
    pub(crate) async fn purchase(&self) -> Value {
        let script = "return (await (await import('/purchase.js')).current()) ?? null";
        self.browser.run_async(script, &[]).await
    }

    /// Puts a purchase into the browser in place of its own, and loads the page again.
    pub(crate) async fn plant(&self, purchase: Value) {
        let script = "
            const opened = await new Promise((resolve) => {
                const request = indexedDB.open('checkout');
                request.onsuccess = () => resolve(request.result);
            });
            const transaction = opened.transaction('purchase', 'readwrite');
            transaction.objectStore('purchase').put(arguments[0], 0);
            await new Promise((resolve) => (transaction.oncomplete = resolve));
            return 'planted'";
        let planted = self.browser.run_async(script, &[purchase]).await;
        assert_eq!(planted, "planted");
        self.browser.reload().await;
    }

    /// Sends a charge from the page, past its own script. What comes back: status, mark of a replay, body.
    pub(crate) async fn send(&self, key: &str, body: &str) -> Value {
        let script = "
            const [key, body] = arguments;
            const response = await fetch('/charges', {
                method: 'POST',
                headers: { 'content-type': 'application/json', 'idempotency-key': key },
                body,
            });
            const replayed = response.headers.get('idempotent-replayed');
            return [response.status, replayed, await response.json()]";
        self.browser
            .run_async(script, &[json!(key), json!(body)])
            .await
    }

    /// The id of who buys in this browser.
    pub(crate) async fn customer(&self) -> String {
        let script = "return (await (await fetch('/shop')).json()).customer";
        let customer = self.browser.run_async(script, &[]).await;
        customer.as_str().expect("an id").to_owned()
    }
}
