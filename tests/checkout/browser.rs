//! A browser, and what a person does in it.

use std::{path::PathBuf, sync::Mutex, time::Duration};

use fantoccini::{
    Client, ClientBuilder, Locator,
    actions::{Actions, InputSource, MOUSE_BUTTON_LEFT, MouseActions, PointerAction},
    elements::Element,
};
use hyper_util::client::legacy::connect::HttpConnector;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    server::LIMIT,
    servers::{ARGUMENTS, Chromium},
};

/// So large that all of the page is seen.
const WINDOW: &str = "--window-size=640,900";

/// Browsers that wait for the next test, as the ids of their sessions and their profiles: to start one takes longer than most tests.
/// The tests are kept apart by their hosts, which all have cookies and storage of their own.
static IDLE: Mutex<Vec<(String, PathBuf)>> = Mutex::new(Vec::new());

/// A browser that nobody else uses meanwhile. A test that fails leaves it to the driver.
pub(crate) struct Browser {
    chromium: &'static Chromium,
    client: Client,
    profile: PathBuf,
}

impl Browser {
    pub(crate) async fn start(chromium: &'static Chromium) -> Self {
        let idle = IDLE.lock().expect("no panic").pop();
        let Some((session, profile)) = idle else {
            return Self::of(chromium, chromium.profile(), json!({})).await;
        };
        let (driver, connector) = (driver(chromium), HttpConnector::new());
        let client = Client::with_existing_session(&driver, &session, connector).await;
        Self {
            chromium,
            client: client.expect("a browser"),
            profile,
        }
    }

    /// A new one, whose settings are these. It is to be ended.
    pub(crate) async fn with(chromium: &'static Chromium, preferences: Value) -> Self {
        Self::of(chromium, chromium.profile(), preferences).await
    }

    async fn of(chromium: &'static Chromium, profile: PathBuf, preferences: Value) -> Self {
        let own = [
            format!("--user-data-dir={}", profile.display()),
            WINDOW.to_owned(),
        ];
        let arguments = ARGUMENTS.map(str::to_owned).into_iter().chain(own);
        let arguments: Vec<String> = arguments.collect();
        let options = json!({ "args": arguments, "prefs": preferences });
        let Value::Object(capabilities) = json!({ "goog:chromeOptions": options }) else {
            unreachable!("an object");
        };
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities)
            .connect(&driver(chromium))
            .await
            .expect("a browser");
        Self {
            chromium,
            client,
            profile,
        }
    }

    /// Another one of the same machine, for somebody else.
    pub(crate) async fn another(&self) -> Self {
        Self::start(self.chromium).await
    }

    /// Leaves it to another test, with one tab that shows nothing.
    pub(crate) async fn leave(self) {
        let tabs = self.client.windows().await.expect("tabs");
        for _ in 1..tabs.len() {
            self.go_to_tab(1).await;
            self.client.close_window().await.expect("a tab that ends");
        }
        self.go_to_tab(0).await;
        self.open("about:blank").await;
        let session = self.client.session_id().await.expect("a session");
        self.client.persist().await.expect("a session that stays");
        let idle = (session.expect("its id"), self.profile);
        IDLE.lock().expect("no panic").push(idle);
    }

    pub(crate) async fn end(self) {
        self.client.close().await.expect("a browser that ends");
    }

    pub(crate) async fn restart(self) -> Self {
        let (chromium, profile) = (self.chromium, self.profile.clone());
        self.end().await;
        Self::of(chromium, profile, json!({})).await
    }

    /// `kill -9`, and then starts it again with what was on disk.
    pub(crate) async fn kill_and_restart(self) -> Self {
        kill_process(self.process_id(), Signal::KILL).expect("a signal that is sent");
        // The driver may have noticed.
        drop(self.client.close().await);
        Self::of(self.chromium, self.profile, json!({})).await
    }

    /// Of the process that starts all others of this browser.
    fn process_id(&self) -> Pid {
        let own = format!("--user-data-dir={}", self.profile.display());
        let processes = std::fs::read_dir("/proc").expect("Linux");
        let id = processes.flatten().find_map(|process| {
            let line = std::fs::read_to_string(process.path().join("cmdline")).ok()?;
            let first = line.contains(&own) && !line.contains("--type=");
            let id = process.file_name().to_str()?.parse().ok();
            id.filter(|_| first).and_then(Pid::from_raw)
        });
        id.expect("its process")
    }

    pub(crate) async fn open(&self, url: &str) {
        self.client.goto(url).await.expect("a page");
    }

    pub(crate) async fn reload(&self) {
        self.client.refresh().await.expect("a page");
    }

    pub(crate) async fn back(&self) {
        self.client.back().await.expect("a page");
    }

    pub(crate) async fn forward(&self) {
        self.client.forward().await.expect("a page");
    }

    /// Opens a tab, and goes to it.
    pub(crate) async fn open_tab(&self, url: &str) {
        let tab = self.client.new_window(true).await.expect("a tab");
        let switched = self.client.switch_to_window(tab.handle).await;
        switched.expect("the tab");
        self.open(url).await;
    }

    /// Goes to a tab, by the order in which they were opened.
    pub(crate) async fn go_to_tab(&self, index: usize) {
        let tabs = self.client.windows().await.expect("tabs");
        let switched = self.client.switch_to_window(tabs[index].clone()).await;
        switched.expect("the tab");
    }

    /// Waits until there is something that this CSS selector is for.
    pub(crate) async fn find(&self, selector: &str) -> Element {
        self.wait_for(Locator::Css(selector)).await
    }

    /// Waits until the page tells that it is so.
    pub(crate) async fn hears(&self, status: &str) {
        let words = format!("//*[@id='status'][contains(., \"{status}\")]");
        self.wait_for(Locator::XPath(&words)).await;
    }

    async fn wait_for(&self, locator: Locator<'_>) -> Element {
        let wait = self.client.wait().at_most(LIMIT);
        let found = wait.every(Duration::from_millis(50)).for_element(locator);
        match found.await {
            Ok(element) => element,
            Err(error) => panic!("{locator:?}: {error}\n{}", self.visible_text().await),
        }
    }

    async fn visible_text(&self) -> String {
        let text = self.run("return document.body.innerText", &[]).await;
        text.as_str().unwrap_or_default().to_owned()
    }

    pub(crate) async fn text(&self, id: &str) -> String {
        let element = self.find(&format!("#{id}")).await;
        element.text().await.expect("its text")
    }

    pub(crate) async fn click(&self, id: &str) {
        let button = self.find(&format!("#{id}:enabled")).await;
        button.click().await.expect("a button to be pressed");
    }

    /// Two clicks as fast as a mouse can.
    pub(crate) async fn click_twice(&self, id: &str) {
        let element = self.find(&format!("#{id}:enabled")).await;
        let mut clicks = MouseActions::new("mouse".into()).then(PointerAction::MoveToElement {
            element,
            duration: None,
            x: 0.0,
            y: 0.0,
        });
        let button = MOUSE_BUTTON_LEFT;
        for _ in 0..2 {
            clicks = clicks.then(PointerAction::Down { button });
            clicks = clicks.then(PointerAction::Up { button });
        }
        let clicked = self.client.perform_actions(Actions::from(clicks)).await;
        clicked.expect("two clicks");
    }

    /// To what has the focus.
    pub(crate) async fn press(&self, keys: &str) {
        let element = self.client.active_element().await.expect("a focus");
        element.send_keys(keys).await.expect("keys to be pressed");
    }

    /// The id of what has the focus.
    pub(crate) async fn focus(&self) -> String {
        let element = self.client.active_element().await.expect("a focus");
        let id = element.attr("id").await.expect("its id");
        id.unwrap_or_default()
    }

    pub(crate) async fn forget_cookies(&self) {
        let deleted = self.client.delete_all_cookies().await;
        deleted.expect("no cookies");
    }

    /// In the page; what it returns is JSON.
    pub(crate) async fn run(&self, script: &str, arguments: &[Value]) -> Value {
        let ran = self.client.execute(script, arguments.to_vec()).await;
        ran.expect("a script that works")
    }

    /// The same, for a script that awaits: it is the body of an async function.
    pub(crate) async fn run_async(&self, script: &str, arguments: &[Value]) -> Value {
        let script = format!(
            "const done = arguments[arguments.length - 1];\
             (async (...arguments) => {{ {script} }})(...arguments).then(done, (error) => done(String(error)))"
        );
        let ran = self.client.execute_async(&script, arguments.to_vec()).await;
        ran.expect("a script that works")
    }

    /// As PNG, and how large that must be.
    pub(crate) async fn picture_of(&self, selector: &str) -> (Vec<u8>, (u32, u32)) {
        let element = self.find(selector).await;
        let picture = element.screenshot().await.expect("a picture");
        let script = "
            const { width, height } = document.querySelector(arguments[0]).getBoundingClientRect();
            return [width, height].map((length) => Math.round(length * devicePixelRatio))";
        let size = self.run(script, &[json!(selector)]).await;
        let length = |index: usize| {
            size[index]
                .as_u64()
                .and_then(|length| length.try_into().ok())
        };
        let size = (length(0).expect("a width"), length(1).expect("a height"));
        (picture, size)
    }
}

fn driver(chromium: &Chromium) -> String {
    format!("http://{}", chromium.address())
}
