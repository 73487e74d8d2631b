//! Where clients connect: a TCP address, or a Unix socket.
//!
//! A loopback address is open to everybody in the pod, on the machine (`hostNetwork`), and to whoever may port-forward.
//! A Unix socket is open to those who may open its file.

use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::str::FromStr;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, fs, io};

use futures::Stream;
use futures::stream::BoxStream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::time::timeout;

use crate::slots::Peer;

/// Owner and group may connect: containers of a pod share a group (`fsGroup`), not always a user.
const MODE: u32 = 0o660;
/// Longest path: 108 bytes with the final NUL, less the name of the directory in which the socket is made.
const LONGEST_PATH: usize = 80;
/// A program that listens has accepted by then.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// A byte stream to a client.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// Connections of gRPC clients.
pub type Incoming = BoxStream<'static, io::Result<(Box<dyn Io>, Peer)>>;

/// Where gRPC is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// At an address.
    Tcp(std::net::SocketAddr),
    /// At a Unix socket: an absolute path.
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// The flag's value is neither an address nor a socket's path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadListen {
    /// It is no address.
    #[error("{0:?} is no address and port, like 127.0.0.1:8086 or [::1]:8086, and no unix:///PATH")]
    Address(String),
    /// It is no path of a socket.
    #[error(
        "{0:?} is no Unix socket: it is to be unix:// and an absolute path of at most {LONGEST_PATH} bytes"
    )]
    Path(String),
}

impl FromStr for Listen {
    type Err = BadListen;

    fn from_str(text: &str) -> Result<Self, BadListen> {
        let Some(path) = text.strip_prefix("unix:") else {
            return text.parse().map(Self::Tcp).map_err(|_| BadListen::Address(text.to_owned()));
        };
        let path = path.strip_prefix("//").unwrap_or(path);
        let is_file = Path::new(path).file_name().is_some() && !path.ends_with('/');
        if path.starts_with('/') && is_file && path.len() <= LONGEST_PATH {
            Ok(Self::Unix(path.into()))
        } else {
            Err(BadListen::Path(text.to_owned()))
        }
    }
}

/// Why the listener could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The socket cannot be made.
    #[error("the socket cannot be made")]
    Io(#[from] io::Error),
    /// Another program listens there.
    #[error("another program listens there")]
    InUse,
    /// The path is a file that is no socket.
    #[error("there is a file that is no socket")]
    NotASocket,
}

impl Listen {
    /// Opens the listener.
    pub async fn bind(&self) -> Result<Listener, ListenError> {
        match self {
            Self::Tcp(address) => Ok(Listener::Tcp(TcpListener::bind(address).await?)),
            Self::Unix(path) => {
                make_room(path).await?;
                let (listener, file) = make_socket(path)?;
                Ok(Listener::Unix(listener, file))
            }
        }
    }
}

/// Removes a socket that nobody listens to: its program was killed.
async fn make_room(path: &Path) -> Result<(), ListenError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(found) if !found.file_type().is_socket() => return Err(ListenError::NotASocket),
        Ok(_) => {}
    }
    match timeout(ANSWER_WITHIN, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(fs::remove_file(path)?),
        Ok(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => Err(error.into()),
        _ => Err(ListenError::InUse),
    }
}

/// Makes the socket in a private directory, sets its mode, and then moves it to its place.
fn make_socket(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let directory = path.with_file_name(format!(".ebbtide-{}", std::process::id()));
    // Left by a program that was killed at this point.
    let _ = fs::remove_dir_all(&directory);
    fs::DirBuilder::new().mode(0o700).create(&directory)?;
    let made = directory.join("s");
    let moved = UnixListener::bind(&made).and_then(|listener| {
        fs::set_permissions(&made, fs::Permissions::from_mode(MODE))?;
        let inode = fs::symlink_metadata(&made)?.ino();
        fs::rename(&made, path)?;
        Ok((listener, SocketFile { path: path.to_owned(), inode }))
    });
    let _ = fs::remove_dir_all(&directory);
    moved
}

/// The file of a socket of ours, removed when this is dropped.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A later program may have put its own socket there.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A place where clients connect.
#[derive(Debug)]
pub enum Listener {
    /// An address.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener, SocketFile),
}

impl Listener {
    /// The address it listens on, with the port that the system chose.
    pub fn address(&self) -> io::Result<Listen> {
        Ok(match self {
            Self::Tcp(listener) => Listen::Tcp(listener.local_addr()?),
            Self::Unix(_, file) => Listen::Unix(file.path.clone()),
        })
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Box<dyn Io>, Peer)>> {
        match self {
            Self::Tcp(listener) => listener.poll_accept(cx).map(|accepted| {
                let (stream, address) = accepted?;
                // Requests and answers are small: do not wait to fill a packet.
                stream.set_nodelay(true)?;
                Ok((Box::new(stream) as Box<dyn Io>, Peer::of(address.ip())))
            }),
            Self::Unix(listener, _) => {
                listener.poll_accept(cx).map_ok(|(stream, _)| (Box::new(stream) as Box<dyn Io>, Peer::Local))
            }
        }
    }
}

impl Stream for Listener {
    type Item = io::Result<(Box<dyn Io>, Peer)>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_accept(cx).map(Some)
    }
}
