//! The worlds on sockets, and the program beside them: a process of its own, so that its memory and its time are its own.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ebbtide::clock::Clock;
use ebbtide::provider::proto::cloud_provider_client::CloudProviderClient;
use ebbtide::provider::proto::{NodeGroupTemplateNodeInfoRequest, NodeGroupsRequest};
use ebbtide::sim::aws::{GroupSpec, HookSpec};
use ebbtide::sim::cluster::Timing;
use ebbtide::sim::http::{Lost, Request, World as _, listen};
use ebbtide::sim::program::TAG;
use ebbtide::sim::span::Span;
use ebbtide::sim::world::World;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsAcceptor;
use tonic::transport::{Channel, Endpoint};

/// The environment of the image: how glibc keeps memory.
const IMAGE: &str = include_str!("../../deploy/image/environment");

/// What AWS takes for each call.
const AWS_TAKES: Duration = Duration::from_millis(20);

/// How many groups of how many nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) groups: usize,
    pub(crate) nodes: u32,
}

impl Size {
    /// So many times fewer nodes.
    pub(crate) fn divided(self, by: usize) -> Self {
        Self { groups: self.groups.div_ceil(by), ..self }
    }

    pub(crate) fn all(self) -> usize {
        self.groups * self.nodes as usize
    }
}

/// AWS and a cluster, at addresses.
pub(crate) struct Stage {
    pub(crate) world: World,
    folder: PathBuf,
    aws: SocketAddr,
    _servers: JoinSet<std::io::Result<()>>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

pub(crate) fn group_name(n: usize) -> String {
    format!("eks-general-purpose-{n:04}")
}

impl Stage {
    /// Groups of nodes of EKS's size, all in service, and their kubelets, which report every five minutes.
    pub(crate) async fn open(size: Size) -> Self {
        let world = World::on(Clock::system(), 1);
        world.aws.delay(AWS_TAKES, Duration::ZERO);
        world.cluster.set_timing(Timing { status_report: Span::seconds(290, 310), ..Timing::brisk() });
        world.aws.add_groups((0..size.groups).map(|n| {
            let name = group_name(n);
            world.kubelets(&name, |spec| spec.like_eks().boots_after(0));
            let hook = HookSpec::terminating("ebbtide").heartbeat(30);
            let group = GroupSpec::named(&name).size(0, 1_000, size.nodes).template("m5.large").hook(hook);
            let zones = ["us-east-1a", "us-east-1b", "us-east-1c"];
            let tag = format!("k8s.io/cluster-autoscaler/node-template/label/{}", "node-group");
            group.zones(zones).tag(TAG, "true").tag(tag, &name).already_running()
        }));
        let hours = Duration::from_hours(1);
        assert!(world.until(hours, |w| w.cluster.node_count() == size.all()).await, "the nodes join");

        let folder = std::env::temp_dir().join(format!("ebbtide-performance-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let mut servers = JoinSet::new();
        let (listener, aws) = socket().await;
        servers.spawn(listen(Arc::new(world.aws.clone()), listener));
        let (listener, api) = socket().await;
        let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        fs::write(folder.join("ca.pem"), key.cert.pem()).expect("written");
        fs::write(folder.join("kubeconfig"), kubeconfig(&folder, api)).expect("written");
        let private = PrivateKeyDer::try_from(key.signing_key.serialize_der()).expect("a key");
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![key.cert.der().clone()], private)
            .expect("they fit");
        servers.spawn(serve_api(world.cluster.clone(), listener, TlsAcceptor::from(Arc::new(config))));
        Self { world, folder, aws, _servers: servers }
    }

    /// Starts the program, with these flags as well, and waits until it has answered for all groups. Returns how long that took.
    pub(crate) async fn start(&self, program: &Path, size: Size, more: &[&str]) -> (Program, Duration) {
        let (listener, grpc) = socket().await;
        drop(listener);
        let log = fs::File::create(self.folder.join("log")).expect("a file");
        let began = Instant::now();
        let mut child = Command::new(program)
            .args(["serve", "--region=us-east-1", "--admin-listen=127.0.0.1:0", "--log-level=warn"])
            .arg(format!("--kubeconfig={}", self.folder.join("kubeconfig").display()))
            .arg(format!("--endpoint-url=http://{}", self.aws))
            .arg(format!("--listen={grpc}"))
            .arg(format!("--node-group-auto-discovery=asg:tag={TAG}"))
            .args(more)
            .env_clear()
            .envs(IMAGE.lines().filter_map(|line| line.split_once('=')))
            .envs([("AWS_ACCESS_KEY_ID", "simulated"), ("AWS_SECRET_ACCESS_KEY", "simulated")])
            .stdout(log.try_clone().expect("a handle"))
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .expect("the program starts");
        let process = Process(child.id());
        let channel = tokio::select! {
            channel = connect(grpc) => channel,
            status = end(&mut child) => panic!("the program ended ({status}): {}", self.log()),
        };
        let started = Program { child, process, channel, address: grpc };
        loop {
            if started.answers_for_all(size).await {
                return (started, began.elapsed());
            }
            assert!(began.elapsed() < Duration::from_mins(5), "{}", self.log());
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// What the program has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

async fn socket() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

fn kubeconfig(folder: &Path, api: SocketAddr) -> String {
    let authority = folder.join("ca.pem");
    let authority = authority.display();
    format!(
        "{{apiVersion: v1, kind: Config, current-context: it, users: [{{name: it, user: {{}}}}],
        clusters: [{{name: it, cluster: {{server: \"https://{api}\", certificate-authority: \"{authority}\"}}}}],
        contexts: [{{name: it, context: {{cluster: it, user: it, namespace: kube-system}}}}]}}"
    )
}

/// The API server as everybody has it: with TLS.
async fn serve_api(
    cluster: ebbtide::sim::cluster::Cluster,
    listener: TcpListener,
    tls: TlsAcceptor,
) -> std::io::Result<()> {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (tls, cluster) = (tls.clone(), cluster.clone());
        connections.spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let service =
                hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                    let cluster = cluster.clone();
                    async move {
                        let (parts, body) = request.into_parts();
                        let body = http_body_util::BodyExt::collect(body).await.map_err(|_| Lost)?;
                        cluster.call(Request::from_parts(parts, body.to_bytes())).await
                    }
                });
            let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Waits until a process has ended.
async fn end(child: &mut Child) -> ExitStatus {
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// A connection to the server at this address, as soon as it listens.
pub(crate) async fn connect(address: SocketAddr) -> Channel {
    let server = Endpoint::from_shared(format!("http://{address}")).expect("a URL");
    loop {
        match server.connect().await {
            Ok(channel) => return channel,
            Err(_) => sleep(Duration::from_millis(2)).await,
        }
    }
}

/// The program, running. Killed when dropped.
pub(crate) struct Program {
    child: Child,
    pub(crate) process: Process,
    pub(crate) channel: Channel,
    pub(crate) address: SocketAddr,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    async fn answers_for_all(&self, size: Size) -> bool {
        let mut client = CloudProviderClient::new(self.channel.clone());
        let Ok(groups) = client.node_groups(NodeGroupsRequest {}).await else { return false };
        let groups = groups.into_inner().node_groups;
        if groups.len() < size.groups {
            return false;
        }
        let ends = [&groups[0], &groups[groups.len() - 1]];
        for id in ends.map(|group| group.id.clone()) {
            let asked = client.node_group_template_node_info(NodeGroupTemplateNodeInfoRequest { id });
            if asked.await.is_err() {
                return false;
            }
        }
        true
    }
}

/// A process, as the kernel knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(pub(crate) u32);

/// Memory of a process, in MB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) resident: f64,
    /// Of it what is not backed by files: without code.
    pub(crate) own: f64,
    pub(crate) peak: f64,
}

impl Process {
    pub(crate) fn memory(self) -> Memory {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).expect("it runs");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel tells");
            let kib: f64 = line.trim_end_matches("kB").trim().parse().expect("a number");
            kib * 1024.0 / 1e6
        };
        Memory { resident: field("VmRSS:"), own: field("RssAnon:"), peak: field("VmHWM:") }
    }

    /// Time on a core, of all its threads.
    pub(crate) fn cpu(self) -> Duration {
        let threads = fs::read_dir(format!("/proc/{}/task", self.0)).expect("it runs");
        let of_thread = |entry: fs::DirEntry| {
            let text = fs::read_to_string(entry.path().join("schedstat")).unwrap_or_default();
            text.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok()).unwrap_or_default()
        };
        Duration::from_nanos(threads.flatten().map(of_thread).sum())
    }
}
