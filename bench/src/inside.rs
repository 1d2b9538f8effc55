//! Hello-world of `library` in one process and without sockets: what a request costs by
//! instructions, where clocks are too noisy to tell.
//!
//! ```sh
//! valgrind --tool=callgrind --separate-threads=yes tidegate-bench inside tidegate 20000
//! ```
//!
//! The difference of two contenders is the layer's cost, function by function. A connection is a
//! pipe in memory; the caller writes the same bytes again and again and looks at nothing but how
//! many come back.

use crate::Outcome;
use crate::measure::cpu_seconds;
use crate::overload::server::{Contender, Options as Server, app, task};
use axum::serve::Listener;
use clap::Args;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

/// What `library` sends.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

#[derive(Args)]
pub(crate) struct Options {
    #[arg(value_enum)]
    contender: Contender,
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
    let server = Server::hello_world(options.contender);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let task = match options.contender {
            Contender::Tidegate => Some(task()?),
            _ => None,
        };
        let router = app(&server, task)?;
        let (mut near, far) = duplex(4_096);
        tokio::spawn(async move { axum::serve(Once(Some(far)), router).await });
        let mut answer = [0; 4_096];
        near.write_all(REQUEST).await?;
        let length = near.read(&mut answer).await?;
        let start = cpu_seconds();
        for _ in 1..options.requests {
            near.write_all(REQUEST).await?;
            near.read_exact(&mut answer[..length]).await?;
        }
        let used = cpu_seconds() - start;
        println!("{:.3} us", used * 1e6 / options.requests as f64);
        Ok(())
    })
}
