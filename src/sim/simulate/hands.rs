//! `ebbtide simulate --listen`: the worlds on sockets, in real time, for kubectl, the aws CLI and a browser.
//!
//! Every socket is on the loopback interface, at a free port. What clients need to know goes into two files of a folder:
//! a kubeconfig, and one for a shell to read. Both are removed at the end.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use kube::ResourceExt as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use super::cast::Cast;
use super::witness::{Witness, machine};
use crate::config::Simulate;
use crate::provider::Listen;
use crate::provider::listen::Listener;
use crate::sim::http;
use crate::sim::program::{TAG, config};
use crate::telemetry;

/// Serves the worlds until Ctrl-C or SIGTERM.
pub(super) async fn serve(folder: &Path, options: &Simulate) -> anyhow::Result<()> {
    let doors = Doors::open().await?;
    let (mut hands, grpc) = Hands::begin(options.seed, doors).await?;
    let _logs = telemetry::init(config().log)?;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let files = Files::write(folder, &hands.addresses, &hands.cast.queue)?;
    print(&greeting(&hands, &files, &grpc)?)?;
    let witness = Witness::new(true);
    let ended = tokio::select! {
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
        () = witness.watch(&hands.cast.world) => Ok(()),
        ended = hands.servers.join_next() => match ended {
            Some(Ok(Err(error))) => Err(error).context("a world cannot be reached any more"),
            _ => Ok(()),
        },
    };
    // A second Ctrl-C does not wait.
    tokio::select! {
        stopped = hands.cast.program.stop() => stopped?,
        _ = interrupt.recv() => {}
    }
    ended
}

fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The sockets, open before anything begins.
struct Doors {
    grpc: Listener,
    cluster: TcpListener,
    aws: TcpListener,
}

impl Doors {
    async fn open() -> anyhow::Result<Self> {
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Ok(Self {
            grpc: Listen::Tcp(anywhere).bind().await?,
            cluster: TcpListener::bind(anywhere).await?,
            aws: TcpListener::bind(anywhere).await?,
        })
    }
}

/// Where the worlds are reached.
struct Addresses {
    cluster: String,
    aws: String,
}

/// The worlds within reach, in real time.
struct Hands {
    cast: Cast,
    addresses: Addresses,
    servers: JoinSet<std::io::Result<()>>,
}

impl Hands {
    /// Plays the history, and lets the clock of this runtime run. Returns the address of the gRPC server too.
    async fn begin(seed: u64, doors: Doors) -> anyhow::Result<(Self, Listen)> {
        let grpc = doors.grpc.address()?;
        let addresses = Addresses {
            cluster: format!("http://{}", doors.cluster.local_addr()?),
            aws: format!("http://{}", doors.aws.local_addr()?),
        };
        let cast = Cast::begin(seed, doors.grpc).await?;
        tokio::time::resume();
        let mut servers = JoinSet::new();
        servers.spawn(http::listen(Arc::new(cast.world.cluster.clone()), doors.cluster));
        servers.spawn(http::listen(Arc::new(cast.world.aws.clone()), doors.aws));
        Ok((Self { cast, addresses, servers }, grpc))
    }
}

fn greeting(hands: &Hands, files: &Files, grpc: &Listen) -> anyhow::Result<String> {
    let Addresses { cluster, aws } = &hands.addresses;
    let admin = hands.cast.program.admin().context("there is no loopback interface")?;
    let (kubeconfig, shell) = (files.kubeconfig.display(), files.shell.display());
    let node = hands.cast.node_with("render")?.name_any();
    let machine = machine(&hands.cast.node_with("shop")?).context("a node of shop is an instance")?;
    let instance = machine.instance;
    Ok(format!(
        "\
A simulated AWS and a simulated cluster are up, and ebbtide runs on them:

  Kubernetes    {cluster} (kubeconfig: {kubeconfig})
  AWS           {aws} (region us-east-1, any credentials)
  ebbtide       http://{admin}/status, gRPC at {grpc}

In another shell:

  . {shell}
  kubectl get nodes --label-columns pool
  kubectl get pods --output wide
  ebbtide status                                         # one scale-in is held up by a budget
  kubectl delete poddisruptionbudget checkout            # and now it is not
  kubectl annotate node {node} ebbtide/scale-in=replace
  aws autoscaling describe-auto-scaling-groups --output table \\
    --query 'AutoScalingGroups[].[AutoScalingGroupName,DesiredCapacity]'
  aws autoscaling terminate-instance-in-auto-scaling-group --no-should-decrement-desired-capacity \\
    --instance-id {instance}

Ctrl-C ends it. What happens from now on, with the seconds:

"
    ))
}

/// The files for clients, removed when this is dropped.
struct Files {
    folder: PathBuf,
    kubeconfig: PathBuf,
    shell: PathBuf,
}

impl Files {
    fn write(folder: &Path, addresses: &Addresses, queue: &str) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("--listen {}", folder.display()))?;
        let folder = folder.canonicalize()?;
        let files = Self { kubeconfig: folder.join("kubeconfig"), shell: folder.join("env"), folder };
        let write = |path: &Path, text: String| {
            std::fs::write(path, text).with_context(|| format!("--listen: {}", path.display()))
        };
        write(&files.kubeconfig, kubeconfig(&addresses.cluster))?;
        write(&files.shell, shell(&files.kubeconfig, &addresses.aws, queue))?;
        Ok(files)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.kubeconfig);
        let _ = std::fs::remove_file(&self.shell);
        // Stays if somebody else has a file there.
        let _ = std::fs::remove_dir(&self.folder);
    }
}

fn kubeconfig(server: &str) -> String {
    format!(
        "\
apiVersion: v1
kind: Config
clusters: [{{name: simulated, cluster: {{server: \"{server}\"}}}}]
users: [{{name: simulated, user: {{}}}}]
contexts:
- {{name: simulated, context: {{cluster: simulated, user: simulated}}}}
current-context: simulated
"
    )
}

/// What a shell reads: for kubectl, for everything that uses an AWS SDK, and for `ebbtide plan` and `ebbtide check`.
fn shell(kubeconfig: &Path, aws: &str, queue: &str) -> String {
    let kubeconfig = kubeconfig.display().to_string().replace('\'', r"'\''");
    format!(
        "\
export KUBECONFIG='{kubeconfig}'
unset AWS_PROFILE AWS_SESSION_TOKEN
export AWS_ENDPOINT_URL={aws} AWS_REGION=us-east-1 AWS_DEFAULT_REGION=us-east-1
export AWS_ACCESS_KEY_ID=simulated AWS_SECRET_ACCESS_KEY=simulated
export NO_PROXY=\"127.0.0.1,${{NO_PROXY:-}}\"
export EBBTIDE_NODE_GROUP_AUTO_DISCOVERY=asg:tag={TAG} EBBTIDE_QUEUE_URL={queue}
"
    )
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use kube::api::ListParams;
    use kube::config::{KubeConfigOptions, Kubeconfig};

    use super::*;
    use crate::clock::Clock;
    use crate::cluster::Cluster;
    use crate::commands::status;
    use crate::provider::proto::NodeGroupsRequest;
    use crate::provider::proto::cloud_provider_client::CloudProviderClient;
    use crate::sim::aws;

    #[tokio::test(start_paused = true)]
    async fn the_worlds_come_up_with_one_scale_in_behind_them_and_one_that_a_budget_holds_up() {
        let cast = Cast::begin(1, Doors::open().await.expect("sockets").grpc).await.expect("a history");
        let late = Clock::system().wall().duration_since(cast.world.clock.now());
        assert!(late.abs().as_secs() < 10, "the worlds' clock reads what the machine's does: {late}");
        let gone = |entry: &aws::Entry| matches!(entry.what, aws::Event::Terminated { .. });
        assert_eq!(cast.world.aws.journal().iter().filter(|entry| gone(entry)).count(), 1);
        let reader = Cluster::new(cast.world.cluster.client());
        let told = status::look(&reader, &cast.world.clock).await.expect("told");
        let [one] = &told.scale_ins[..] else { panic!("one: {told:?}") };
        let waiting: Vec<_> = one.waiting.iter().flatten().map(|wait| wait.text.as_str()).collect();
        assert_eq!(waiting, ["budget default/checkout", "asked not to be disturbed"]);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_has_the_files_reaches_both_worlds_and_the_program() {
        let (hands, grpc) = Hands::begin(1, Doors::open().await.expect("sockets")).await.expect("up");
        let folder = std::env::temp_dir().join(format!("ebbtide it's {}", std::process::id()));
        let files = Files::write(&folder, &hands.addresses, &hands.cast.queue).expect("written");
        let read = Kubeconfig::read_from(&files.kubeconfig).expect("a kubeconfig");
        let config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
        let client = kube::Client::try_from(config.expect("complete")).expect("a client");
        let nodes = Api::<Node>::all(client).list(&ListParams::default()).await.expect("nodes");
        assert_eq!(nodes.items.len(), hands.cast.world.cluster.node_names().len());
        let mut client = CloudProviderClient::connect(format!("http://{grpc}")).await.expect("a connection");
        let groups = client.node_groups(NodeGroupsRequest {}).await.expect("groups").into_inner();
        assert_eq!(groups.node_groups.len(), 2);
        let text = std::fs::read_to_string(&files.shell).expect("a file");
        assert!(text.contains(&hands.addresses.aws) && text.contains(r"it'\''s"), "{text}");
        drop(files);
        assert!(!folder.exists(), "nothing is left");
    }
}
