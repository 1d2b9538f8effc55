//! An axum server that is offered more than it can do.
//!
//! `cargo run -p tidegate --example axum_server` starts the server and overruns it from
//! the same process for three seconds, then prints who was served. With `-- serve` it serves on
//! port 8080 until it is interrupted, with the dashboard and `/metrics` on port 9900 of loopback.
//!
//! ```text
//! criticality        asked  served refused
//! CRITICAL_PLUS         25      25       0
//! SHEDDABLE           2633     866    1767
//! ```

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tidegate::admin::Admin;
use tidegate::{Criticality, Task, context};
use tidegate_core::decision::Reason;
use tidegate_wire::customer::Identities;
use tokio::net::{TcpListener, TcpStream};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Uses the CPU for two milliseconds, or for half of one if the task would rather have that.
async fn work() -> &'static str {
    let micros = if context::degrade() { 500 } else { 2_000 };
    let until = Instant::now() + Duration::from_micros(micros);
    while Instant::now() < until {
        std::hint::spin_loop();
    }
    "done\n"
}

fn app(task: &Task) -> Router {
    Router::new().route("/work", get(work)).layer(task.layer())
}

fn main() -> Outcome {
    // One thread serves, so that there is another CPU to ask from.
    let (sender, receiver) = std::sync::mpsc::channel();
    let forever = std::env::args().any(|argument| argument == "serve");
    let address = if forever { "127.0.0.1:8080" } else { "127.0.0.1:0" };
    let server = std::thread::spawn(move || -> Outcome {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            // On this machine everybody may claim to matter most: there are no identities.
            let identities = Identities::default().unidentified(Criticality::CriticalPlus);
            let task = Task::builder("example").cpus(1.0).identities(identities).start()?;
            let listener = TcpListener::bind(address).await?;
            sender.send((task.clone(), listener.local_addr()?))?;
            Ok(axum::serve(listener, app(&task)).await?)
        })
    });
    let (task, address) = receiver.recv()?;
    if forever {
        // On a port and a thread of its own: it is there whatever comes, and not for the world.
        let page = Admin::new(&task).spawn("127.0.0.1:9900")?;
        say(&format!(
            "http://{address}/work, and http://{} shows what becomes of it",
            page.address()
        ));
        return server.join().unwrap_or_else(|_| Err("the server panicked".into()));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(overrun(address))?;
    print(&task);
    Ok(())
}

/// Sixty callers with what may be shed, one with what must not.
async fn overrun(address: SocketAddr) -> Outcome {
    let until = Instant::now() + Duration::from_secs(3);
    let mut callers = Vec::new();
    for n in 0..61 {
        let important = n == 60;
        callers.push(tokio::spawn(async move {
            let io = TokioIo::new(TcpStream::connect(address).await?);
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
            tokio::spawn(connection);
            while Instant::now() < until {
                sender.ready().await?;
                let criticality = if important { "CRITICAL_PLUS" } else { "SHEDDABLE" };
                let request = http::Request::get("/work")
                    .header("host", "localhost")
                    .header("x-criticality", criticality)
                    .body(Empty::<Bytes>::new())?;
                let answer = sender.send_request(request).await?;
                let served = answer.status().is_success();
                answer.into_body().collect().await?;
                if important || !served {
                    tokio::time::sleep(Duration::from_millis(if important { 20 } else { 5 })).await;
                }
            }
            Outcome::Ok(())
        }));
    }
    for caller in callers {
        caller.await??;
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "somebody has to know where to look")]
fn say(text: &str) {
    println!("{text}");
}

#[expect(clippy::print_stdout, reason = "that is what it is for")]
fn print(task: &Task) {
    let counts = task.gate().counts();
    println!("{:<15} {:>8} {:>7} {:>7}", "criticality", "asked", "served", "refused");
    for criticality in [Criticality::CriticalPlus, Criticality::Sheddable] {
        let served = counts.admitted(criticality);
        let refused = counts.rejected(Reason::Overloaded, criticality);
        let asked = served + refused;
        println!("{:<15} {asked:>8} {served:>7} {refused:>7}", criticality.name());
    }
}
