//! Bounds on a port's connections: how many, how many of one peer, and how long each lasts.
//!
//! Nobody is turned away. When all places are taken, a newcomer gets the place of the oldest connection that has never
//! sent a byte, or else of the one that has been silent longest. So idle connections, however many, keep nobody out and
//! cost no busy client its place.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// A client on the Unix socket, or on a pipe in memory.
    Local,
    /// A client at this address.
    Ip(IpAddr),
}

impl Peer {
    /// The peer at an address. An IPv4 address mapped to IPv6 is the same peer.
    pub fn of(address: IpAddr) -> Self {
        Self::Ip(address.to_canonical())
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Ip(address) => address.fmt(f),
        }
    }
}

/// One connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Who is at the other end.
    pub peer: Peer,
    /// Its number among all to the port.
    number: u64,
}

/// The places for connections.
#[derive(Debug)]
pub struct Slots {
    all: usize,
    of_a_peer: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    slots: BTreeMap<u64, Place>,
}

#[derive(Debug)]
struct Place {
    peer: Peer,
    /// When it last sent something; `None`: never.
    heard: Option<Instant>,
    shed: CancellationToken,
}

impl Taken {
    /// Whose place a newcomer gets; `None` if there is a free one.
    fn to_shed(&self, newcomer: Peer, all: usize, of_a_peer: usize) -> Option<u64> {
        let of_peer = |place: &Place| place.peer == newcomer;
        let is_peer_full = self.slots.values().filter(|place| of_peer(place)).count() >= of_a_peer;
        let candidates = self.slots.iter().filter(|(_, place)| !is_peer_full || of_peer(place));
        let silent_longest = candidates.min_by_key(|(id, place)| (place.heard, **id)).map(|(id, _)| *id);
        silent_longest.filter(|_| is_peer_full || self.slots.len() >= all)
    }
}

impl Slots {
    /// `all` places, of which one peer has at most `of_a_peer`.
    pub fn new(all: usize, of_a_peer: usize) -> Arc<Self> {
        Arc::new(Self { all, of_a_peer, taken: Mutex::default() })
    }

    /// A place for a newcomer, taken from another connection if none is free.
    pub fn take(self: &Arc<Self>, peer: Peer) -> Slot {
        let mut taken = self.taken.lock();
        if let Some(id) = taken.to_shed(peer, self.all, self.of_a_peer)
            && let Some(place) = taken.slots.remove(&id)
        {
            place.shed.cancel();
        }
        let (id, shed) = (taken.next, CancellationToken::new());
        taken.next += 1;
        taken.slots.insert(id, Place { peer, heard: None, shed: shed.clone() });
        Slot { slots: Arc::clone(self), peer, id, shed }
    }
}

/// A taken place. Dropping this frees it.
#[derive(Debug)]
pub struct Slot {
    slots: Arc<Slots>,
    peer: Peer,
    id: u64,
    shed: CancellationToken,
}

impl Slot {
    /// Completes when another connection has got the place.
    pub async fn shed(&self) {
        self.shed.cancelled().await;
    }

    fn heard(&self) {
        if let Some(place) = self.slots.taken.lock().slots.get_mut(&self.id) {
            place.heard = Some(Instant::now());
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.taken.lock().slots.remove(&self.id);
    }
}

/// A connection with a place. It ends when it loses the place or reaches its age limit.
pub struct Bounded<IO> {
    io: IO,
    slot: Slot,
    shed: Pin<Box<WaitForCancellationFutureOwned>>,
    too_old: Pin<Box<tokio::time::Sleep>>,
}

impl<IO: fmt::Debug> fmt::Debug for Bounded<IO> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bounded").field("io", &self.io).field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl<IO> Bounded<IO> {
    /// A connection in `slot`, for at most `age`.
    pub fn new(io: IO, slot: Slot, age: Duration) -> Self {
        let shed = Box::pin(slot.shed.clone().cancelled_owned());
        Self { io, slot, shed, too_old: Box::pin(sleep(age)) }
    }

    /// Which connection it is.
    pub fn connection(&self) -> Connection {
        Connection { peer: self.slot.peer, number: self.slot.id }
    }

    /// Fails if the connection is to end; otherwise wakes the task when it is.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let over = if self.shed.as_mut().poll(cx).is_ready() {
            "its place was given to another connection"
        } else if self.too_old.as_mut().poll(cx).is_ready() {
            "it has lasted as long as a connection may"
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, over))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Bounded<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.poll_over(cx)?;
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.io).poll_read(cx, buf);
        if buf.filled().len() > before {
            this.slot.heard();
        }
        polled
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Bounded<IO> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.poll_over(cx)?;
        Pin::new(&mut this.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.poll_over(cx)?;
        Pin::new(&mut this.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.poll_over(cx)?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.poll_over(cx)?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn peer(n: u8) -> Peer {
        Peer::of(Ipv4Addr::new(10, 0, 0, n).into())
    }

    fn is_shed(slot: &Slot) -> bool {
        slot.shed.is_cancelled()
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_gets_the_place_of_a_peer_that_never_spoke_or_else_of_the_longest_silent() {
        let slots = Slots::new(3, 3);
        let taken = [0, 1, 2].map(|n| slots.take(peer(n)));
        taken[0].heard();
        tokio::time::advance(SECOND).await;
        taken[2].heard();
        let shed = || [&taken[0], &taken[1], &taken[2]].map(is_shed);
        let newcomer = slots.take(peer(9));
        assert_eq!(shed(), [false, true, false]);
        newcomer.heard();
        let another = slots.take(peer(8));
        assert_eq!(shed(), [true, true, false]);
        drop(another);
        let _free = slots.take(peer(7));
        assert_eq!((shed(), is_shed(&newcomer)), ([true, true, false], false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_has_all_it_may_have_takes_its_own() {
        let slots = Slots::new(10, 2);
        let other = slots.take(peer(1));
        tokio::time::advance(SECOND).await;
        let own = [slots.take(peer(2)), slots.take(peer(2))];
        let third = slots.take(Peer::of("::ffff:10.0.0.2".parse().expect("an address")));
        assert_eq!([&other, &own[0], &own[1], &third].map(is_shed), [false, true, false, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_when_its_place_is_taken_and_when_it_is_too_old() {
        let slots = Slots::new(1, 1);
        let connect = |age| {
            let (ours, theirs) = duplex(16);
            (ours, Bounded::new(theirs, slots.take(peer(1)), age))
        };
        let mut byte = [0];
        let (_first, mut shed) = connect(60 * SECOND);
        let (mut ours, mut lasting) = connect(60 * SECOND);
        assert_eq!(shed.read(&mut byte).await.expect_err("shed").kind(), io::ErrorKind::ConnectionAborted);
        assert!(shed.write_all(&byte).await.is_err());
        ours.write_all(&[7]).await.expect("open");
        lasting.read_exact(&mut byte).await.expect("still there");
        let began = Instant::now();
        assert!(lasting.read(&mut byte).await.is_err());
        assert_eq!(began.elapsed(), 60 * SECOND);
    }
}
