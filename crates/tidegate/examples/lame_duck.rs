//! The life of a task: it warms up, serves, and leaves without failing a request.
//!
//! ```sh
//! cargo run -p tidegate --example lame_duck &
//! curl -i localhost:8080/readyz           # 503 starting; a second later 200 serving
//! curl localhost:8080/slow &              # takes three seconds
//! kill -TERM %1                           # or ctrl-c; twice if you are in a hurry
//! curl -i localhost:8080/readyz           # 503 lame duck, and it still serves
//! wait                                    # /slow is answered, then the task ends
//! ```
//!
//! gRPC's health and the stream of load reports are on the same port. Another address than
//! `127.0.0.1:8080` can be given as an argument.

#![allow(clippy::print_stdout, reason = "that is what examples do")]

use axum::Router;
use axum::routing::get;
use std::time::Duration;
use tidegate::clock::Clock;
use tidegate::health::{Health, LoadReports};
use tidegate::life::{Life, LifeConfig, Phase};
use tidegate_wire::orca::{self, Format, OrcaLoadReport};
use tonic::service::Routes;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = LifeConfig::default();
    // As long as it takes until everybody has asked for our health twice.
    config.drain_delay = Duration::from_secs(5);
    let life = Life::new(config, Clock::monotonic());
    life.stop_on_signals()?;
    let report = || OrcaLoadReport { cpu_utilization: 0.1, ..OrcaLoadReport::default() };
    let health = Health::new(life.clone())
        .load(move || orca::encode(&report(), Format::PrefixedBinary).ok());
    let slow = || async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        "done\n"
    };
    let router = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/slow", get(slow))
        .merge(health.clone().router());
    let reports = LoadReports::new(life.clone(), report).into_service();
    let grpc = Routes::new(health.grpc()).add_service(reports).into_axum_router();

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let telling = tokio::spawn(tell(life.clone()));
    let warm_up = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok::<_, std::io::Error>(())
    };
    tidegate::serve(listener, grpc.merge(router).into_make_service())
        .life(life)
        .prewarm(warm_up)
        .await?;
    telling.await?;
    println!("everything was answered");
    Ok(())
}

/// Prints each phase.
async fn tell(life: Life) {
    let mut phase = life.phase();
    loop {
        println!("{}", phase.name());
        if phase == Phase::Gone {
            return;
        }
        phase = life.left(phase).await;
    }
}
