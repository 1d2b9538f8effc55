//! Hello-world of `library` in one process and without sockets: what a request costs by
//! instructions, where clocks are too noisy to tell.
//!
//! ```sh
//! valgrind --tool=callgrind --separate-threads=yes tidegate-bench inside tidegate axum 20000
//! ```
//!
//! The difference of two contenders is the layer's cost, function by function. A connection is a
//! pipe in memory. Over HTTP/1.1 the caller writes the same bytes again and again and looks at
//! nothing but how many come back; the one of gRPC is hyper's, on the same thread: what it takes to
//! read a load report counts as the layer's, too.

use crate::Outcome;
use crate::measure::cpu_seconds;
use crate::overload::callers::{Said, ask_grpc};
use crate::overload::grpc;
use crate::overload::server::{App, Contender, Options as Server, app, task};
use axum::serve::Listener;
use clap::Args;
use futures_util::stream;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::io;
use tidegate::{Criticality, Task};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

/// What `library` sends over HTTP/1.1.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\nx-criticality: CRITICAL\r\n\r\n";

/// More than is on its way at a time.
const PIPE: usize = 65_536;

#[derive(Args)]
pub(crate) struct Options {
    #[arg(value_enum)]
    contender: Contender,
    #[arg(value_enum)]
    app: App,
    /// How many to answer.
    requests: u64,
}

/// Accepts one connection.
struct Once(Option<DuplexStream>);

impl Listener for Once {
    type Io = DuplexStream;
    type Addr = ();

    async fn accept(&mut self) -> (DuplexStream, ()) {
        match self.0.take() {
            Some(stream) => (stream, ()),
            None => core::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn run(options: &Options) -> Outcome {
    let server = Server::hello_world(options.contender, options.app);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let task = match options.contender {
            Contender::Tidegate => Some(task()?),
            _ => None,
        };
        let used = match options.app {
            App::Axum => ask_axum(&server, task, options.requests).await?,
            App::Tonic => ask_tonic(server, task, options.requests).await?,
        };
        println!("{:.3} us", used * 1e6 / options.requests as f64);
        Ok(())
    })
}

/// Returns the CPU time that all but the first took, in seconds.
async fn ask_axum(server: &Server, task: Option<Task>, requests: u64) -> Outcome<f64> {
    let router = app(server, task)?;
    let (mut near, far) = duplex(PIPE);
    tokio::spawn(async move { axum::serve(Once(Some(far)), router).await });
    let mut answer = [0; 4_096];
    near.write_all(REQUEST).await?;
    let length = near.read(&mut answer).await?;
    let start = cpu_seconds();
    for _ in 1..requests {
        near.write_all(REQUEST).await?;
        near.read_exact(&mut answer[..length]).await?;
    }
    Ok(cpu_seconds() - start)
}

/// The same over gRPC.
async fn ask_tonic(server: Server, task: Option<Task>, requests: u64) -> Outcome<f64> {
    let (near, far) = duplex(PIPE);
    let incoming = stream::iter([Ok(far)]);
    tokio::spawn(async move { grpc::serve_all(&server, task, incoming).await });
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(near)).await?;
    tokio::spawn(connection);
    let mut start = cpu_seconds();
    for n in 0..requests {
        if ask_grpc(&mut sender, "localhost", Criticality::Critical).await? != Said::Good {
            return Err("a request was not answered well".into());
        }
        if n == 0 {
            start = cpu_seconds();
        }
    }
    Ok(cpu_seconds() - start)
}
