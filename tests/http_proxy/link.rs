//! One connection of a client, and its own one to the server.

use std::{io, net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::TcpStream,
};

use super::{
    fault::Fault,
    message::{Framing, Stream, read_body, read_half, read_head},
    proxy::Shared,
    request::Request,
};

#[derive(Debug)]
pub struct Link {
    client: Stream,
    server: Stream,
    shared: Arc<Shared>,
}

/// Whether another request may follow on the connection.
type Goes = bool;

impl Link {
    pub async fn run(
        client: TcpStream,
        upstream: SocketAddr,
        shared: Arc<Shared>,
    ) -> io::Result<()> {
        let server = TcpStream::connect(upstream).await?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
        }
        let mut link = Self {
            client: BufReader::new(client),
            server: BufReader::new(server),
            shared,
        };
        while link.exchange().await? {}
        Ok(())
    }

    async fn exchange(&mut self) -> io::Result<Goes> {
        let head = tokio::select! {
            head = read_head(&mut self.client) => head?,
            () = gone(self.server.get_ref()) => None,
        };
        let Some(head) = head else { return Ok(false) };
        let framing = Framing::of_request(&head);
        let fault = self.shared.meet(&head);
        let body = if matches!(fault, Fault::CutRequest) {
            read_half(&mut self.client, framing).await?
        } else {
            read_body(&mut self.client, framing).await?
        };
        let request = Request { head, body };
        self.shared.keep(request.clone());
        match fault {
            Fault::Pass => {
                let (head, body, goes) = self.answer(&request).await?;
                self.deliver(&[head, body].concat(), goes).await
            }
            Fault::LoseRequest => self.close(),
            Fault::CutRequest => {
                self.forward(&request).await?;
                self.reset()
            }
            Fault::HoldRequest => {
                self.shared.hold().await;
                self.forward(&request).await?;
                let (head, body, goes) = read_answer(&mut self.server, &request).await?;
                self.deliver(&[head, body].concat(), goes).await
            }
            Fault::LoseAnswer => {
                self.answer(&request).await?;
                self.close()
            }
            Fault::ResetAnswer => {
                self.answer(&request).await?;
                self.reset()
            }
            Fault::CutAnswer => {
                let (mut head, body, _) = self.answer(&request).await?;
                head.extend(&body[..body.len() / 2]);
                self.deliver(&head, false).await?;
                self.reset()
            }
            Fault::HoldAnswer => {
                let (head, body, goes) = self.answer(&request).await?;
                tokio::select! {
                    () = self.shared.hold() => self.deliver(&[head, body].concat(), goes).await,
                    () = gone(self.client.get_ref()) => Ok(false),
                }
            }
            Fault::Answer(answer) => {
                self.shared.strike();
                self.deliver(&answer, true).await
            }
        }
    }

    /// What the server answers: head, body, and whether its connection goes on. An error once the client has gone, so that the
    /// server learns of that.
    async fn answer(&mut self, request: &Request) -> io::Result<(Vec<u8>, Vec<u8>, Goes)> {
        self.forward(request).await?;
        tokio::select! {
            answer = read_answer(&mut self.server, request) => answer,
            () = gone(self.client.get_ref()) => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    async fn forward(&mut self, request: &Request) -> io::Result<()> {
        self.server.write_all(&request.head).await?;
        self.server.write_all(&request.body).await?;
        self.server.flush().await
    }

    async fn deliver(&mut self, answer: &[u8], goes: Goes) -> io::Result<Goes> {
        self.client.write_all(answer).await?;
        self.client.flush().await?;
        Ok(goes)
    }

    fn close(&self) -> io::Result<Goes> {
        self.shared.strike();
        Ok(false)
    }

    fn reset(&self) -> io::Result<Goes> {
        for stream in [&self.client, &self.server] {
            stream.get_ref().set_zero_linger()?;
        }
        self.close()
    }
}

/// An answer that keeps the connection open, or not.
async fn read_answer(
    server: &mut Stream,
    request: &Request,
) -> io::Result<(Vec<u8>, Vec<u8>, Goes)> {
    let head = read_head(server).await?;
    let head = head.ok_or(io::ErrorKind::UnexpectedEof)?;
    let framing = Framing::of_answer(&head, &request.head);
    let body = read_body(server, framing).await?;
    Ok((head, body, framing != Framing::Open))
}

/// Waits for the end of the other side. For ever if it sent something instead, which belongs to whoever reads next.
async fn gone(stream: &TcpStream) {
    if matches!(stream.peek(&mut [0]).await, Ok(1..)) {
        std::future::pending::<()>().await;
    }
}
