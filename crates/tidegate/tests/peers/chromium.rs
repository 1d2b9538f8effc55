//! A real Chromium, spoken to in its own protocol.
//!
//! Messages are JSON with a zero byte behind each, over two pipes that Chromium expects as its file
//! descriptors 3 and 4; a shell puts its standard input and output there.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Longer than anything takes, on any machine.
const SOON: Duration = Duration::from_secs(60);

/// A page in a browser of its own, which ends when it is dropped.
pub(crate) struct Browser {
    process: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    /// What happened and was not asked for.
    pub(crate) events: Vec<Value>,
    session: Option<String>,
    next: u64,
    profile: PathBuf,
}

impl Browser {
    /// Nothing, and a line that says so, if nobody has asked for tests with peers.
    pub(crate) fn start(width: u32, height: u32) -> Option<Self> {
        super::peer::Peers::find()?;
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("peers");
        let name = format!("chromium-{}-{:?}", std::process::id(), std::thread::current().id());
        let profile = directory.join(name);
        std::fs::create_dir_all(&profile).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "exec chromium \"$@\" 3<&0 4>&1 >/dev/null 2>&1", "sh"]);
        command.args([
            "--headless",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--no-proxy-server",
            "--hide-scrollbars",
        ]);
        command.arg(format!("--user-data-dir={}", profile.display()));
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        let input = process.stdin.take().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            while output.read_until(0, &mut bytes).is_ok_and(|n| n > 0) {
                bytes.pop();
                let Ok(message) = serde_json::from_slice(&bytes) else { return };
                if sender.send(message).is_err() {
                    return;
                }
                bytes.clear();
            }
        });
        let (events, session) = (Vec::new(), None);
        let mut browser = Self { process, input, messages, events, session, next: 0, profile };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.resize(width, height);
        Some(browser)
    }

    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut message = json!({ "id": id, "method": method });
        message["params"] = parameters;
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.input.write_all(&bytes).expect("Chromium listens");
        loop {
            let mut answer = self.messages.recv_timeout(SOON).unwrap_or_else(|error| {
                panic!("{method}: {error}; is chromium there? `cargo xtask test --only install`")
            });
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let (scale, mobile) = (1, width < 500);
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": scale,
                           "mobile": mobile });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Prefers light or dark.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    pub(crate) fn open(&mut self, url: &str) {
        let went = self.call("Page.navigate", json!({ "url": url }));
        assert!(went["errorText"].is_null(), "{url}: {}", went["errorText"]);
    }

    /// What `expression` is in the page.
    pub(crate) fn ask(&mut self, expression: &str) -> Value {
        let asked =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut answer = self.call("Runtime.evaluate", asked);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Asks until it is so.
    pub(crate) fn until(&mut self, expression: &str) {
        let begun = std::time::Instant::now();
        while self.ask(expression) != true {
            if begun.elapsed() > SOON {
                let text = self.ask("document.body.innerText");
                panic!("never: {expression}\n{}", text.as_str().unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Presses a key.
    pub(crate) fn press(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "Tab" => 9,
            "ArrowDown" => 40,
            _ => 0,
        };
        let text = match key {
            "Enter" => "\r",
            key if key.len() == 1 => key,
            _ => "",
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// A picture of the page as far down as `height`, as PNG in base64.
    pub(crate) fn picture(&mut self, width: u32, height: u32) -> String {
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let wanted = json!({ "format": "png", "clip": clip, "captureBeyondViewport": true });
        let mut taken = self.call("Page.captureScreenshot", wanted);
        match taken["data"].take() {
            Value::String(data) => data,
            other => panic!("no picture: {other}"),
        }
    }

    /// Errors of the console and exceptions so far.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let complaint = |event: &&Value| {
            let parameters = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Runtime.exceptionThrown" => true,
                "Runtime.consoleAPICalled" => parameters["type"] == "error",
                "Log.entryAdded" => parameters["entry"]["level"] == "error",
                _ => false,
            }
        };
        self.events.iter().filter(complaint).map(Value::to_string).collect()
    }

    /// Every address that was asked for.
    pub(crate) fn requests(&self) -> Vec<String> {
        let sent = |event: &Value| {
            (event["method"] == "Network.requestWillBeSent")
                .then(|| event["params"]["request"]["url"].as_str().map(str::to_owned))
                .flatten()
        };
        self.events.iter().filter_map(sent).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}
