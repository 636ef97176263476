//! As much of HTTP/1.1 as it takes to know where a message ends. The bytes stay as they are.

use std::io;

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    net::TcpStream,
};

pub type Stream = BufReader<TcpStream>;

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Framing {
    Length(usize),
    Chunked,
    /// It ends with the connection.
    Open,
}

impl Framing {
    pub fn of_request(head: &[u8]) -> Self {
        Self::declared(head).unwrap_or(Self::Length(0))
    }

    pub fn of_answer(head: &[u8], request: &[u8]) -> Self {
        let status = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        if request.starts_with(b"HEAD ") || [&b"204"[..], b"304"].contains(&status) {
            return Self::Length(0);
        }
        Self::declared(head).unwrap_or(Self::Open)
    }

    fn declared(head: &[u8]) -> Option<Self> {
        let head = String::from_utf8_lossy(head).to_ascii_lowercase();
        head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            match (name, value.trim()) {
                ("transfer-encoding", _) => Some(Self::Chunked),
                ("content-length", length) => length.parse().ok().map(Self::Length),
                _ => None,
            }
        })
    }
}

/// With the empty line that ends it. None if the connection ended before.
pub async fn read_head(from: &mut Stream) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    loop {
        let line = from.read_until(b'\n', &mut head).await?;
        if line == 0 {
            return Ok(None);
        }
        if head.ends_with(b"\r\n\r\n") {
            return Ok(Some(head));
        }
    }
}

pub async fn read_body(from: &mut Stream, framing: Framing) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    match framing {
        Framing::Length(length) => read_exactly(from, length, &mut body).await?,
        Framing::Chunked => while read_chunk(from, &mut body).await? {},
        Framing::Open => {
            from.read_to_end(&mut body).await?;
        }
    }
    Ok(body)
}

/// Half of it; of one in chunks, the first.
pub async fn read_half(from: &mut Stream, framing: Framing) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    match framing {
        Framing::Length(length) => read_exactly(from, length / 2, &mut body).await?,
        Framing::Chunked => {
            read_chunk(from, &mut body).await?;
        }
        Framing::Open => {}
    }
    Ok(body)
}

/// Whether another one follows. With the last one come the trailers.
async fn read_chunk(from: &mut Stream, body: &mut Vec<u8>) -> io::Result<bool> {
    let line = body.len();
    from.read_until(b'\n', body).await?;
    let size = String::from_utf8_lossy(&body[line..]);
    let size = size.split(';').next().unwrap_or_default().trim();
    let size = usize::from_str_radix(size, 16).map_err(io::Error::other)?;
    if size > 0 {
        read_exactly(from, size + 2, body).await?;
        return Ok(true);
    }
    loop {
        let line = body.len();
        if from.read_until(b'\n', body).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if body[line..] == *b"\r\n" {
            return Ok(false);
        }
    }
}

async fn read_exactly(from: &mut Stream, length: usize, body: &mut Vec<u8>) -> io::Result<()> {
    let start = body.len();
    body.resize(start + length, 0);
    from.read_exact(&mut body[start..]).await.map(drop)
}
