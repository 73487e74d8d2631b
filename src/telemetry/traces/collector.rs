//! A collector in the process, for tests.

use std::io;
use std::sync::Arc;

use futures::StreamExt as _;
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use super::proto::trace_service_server::{TraceService, TraceServiceServer};
use super::proto::{ExportTraceServiceRequest, ExportTraceServiceResponse, Span};

/// What it does with what it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// It keeps it.
    Listens,
    /// It refuses it as busy.
    IsBusy,
    /// It never answers.
    IsSilent,
    /// Nobody is there.
    IsAway,
}

/// The collector. Dropping it ends it.
#[derive(Debug)]
pub struct Collector {
    mood: Arc<Mutex<Mood>>,
    told: Told,
    _server: JoinSet<()>,
}

type Told = Arc<Mutex<Vec<Span>>>;

struct Service(Told, Arc<Mutex<Mood>>);

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock()
}

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mood = *lock(&self.1);
        match mood {
            Mood::IsBusy => return Err(Status::unavailable("busy")),
            Mood::IsSilent => std::future::pending().await,
            Mood::Listens | Mood::IsAway => {}
        }
        let scopes = request.into_inner().resource_spans.into_iter().flat_map(|of| of.scope_spans);
        lock(&self.0).extend(scopes.flat_map(|scope| scope.spans));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// One in this mood, and the way to it.
    pub fn new(mood: Mood) -> (Self, Channel) {
        let (mood, told) = (Arc::new(Mutex::new(mood)), Told::default());
        let (connect, connections) = mpsc::unbounded_channel::<tokio::io::DuplexStream>();
        let connections = UnboundedReceiverStream::new(connections).map(Ok::<_, io::Error>);
        let service = TraceServiceServer::new(Service(Arc::clone(&told), Arc::clone(&mood)));
        let mut server = JoinSet::new();
        server.spawn(async move {
            let _ = Server::builder().add_service(service).serve_with_incoming(connections).await;
        });
        let is_away = Arc::clone(&mood);
        let channel = Endpoint::from_static("http://collector").connect_with_connector_lazy(
            tower::service_fn(move |_: http::Uri| {
                let (connect, is_away) = (connect.clone(), *lock(&is_away) == Mood::IsAway);
                async move {
                    let (ours, theirs) = tokio::io::duplex(64 * 1024);
                    let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
                    if is_away || connect.send(theirs).is_err() {
                        return Err(refused());
                    }
                    Ok(TokioIo::new(ours))
                }
            }),
        );
        (Self { mood, told, _server: server }, channel)
    }

    /// Its mood from now on.
    pub fn turns(&self, mood: Mood) {
        *lock(&self.mood) = mood;
    }

    /// The spans that it was told, in their order.
    pub fn spans(&self) -> Vec<Span> {
        lock(&self.told).clone()
    }
}
