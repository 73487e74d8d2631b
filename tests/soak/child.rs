//! `ebbtide serve` as a process, and what Linux tells of it.

use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use ebbtide::provider::proto::cloud_provider_client::CloudProviderClient;
use ebbtide::sim::program::TAG;
use tonic::transport::{Channel, Endpoint};

/// Where the worlds are.
pub(crate) struct Addresses {
    pub(crate) cluster: String,
    pub(crate) aws: String,
}

/// The program. Killed when this is dropped.
pub(crate) struct Child {
    process: std::process::Child,
    folder: PathBuf,
    grpc: String,
}

/// What Linux tells of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// Resident memory, in KiB.
    pub(crate) rss: u64,
    /// Open descriptors.
    pub(crate) descriptors: usize,
}

/// A port that nobody has at the moment.
fn port() -> anyhow::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

impl Child {
    pub(crate) fn start(program: &str, addresses: &Addresses) -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("ebbtide-soak-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let kubeconfig = folder.join("kubeconfig");
        let cluster = &addresses.cluster;
        std::fs::write(
            &kubeconfig,
            format!(
                "{{apiVersion: v1, kind: Config, current-context: c, users: [{{name: u, user: {{}}}}], \
                 clusters: [{{name: c, cluster: {{server: \"{cluster}\"}}}}], \
                 contexts: [{{name: c, context: {{cluster: c, user: u, namespace: kube-system}}}}]}}"
            ),
        )?;
        let (grpc, admin) = (port()?, port()?);
        let log = File::create(folder.join("log"))?;
        let process = Command::new(program)
            .args(["serve", &format!("--listen={grpc}"), &format!("--admin-listen={admin}")])
            .args([&format!("--node-group-auto-discovery=asg:tag={TAG}"), "--max-operator-scale-ins=10%"])
            .env("KUBECONFIG", &kubeconfig)
            .env("AWS_ENDPOINT_URL", &addresses.aws)
            .envs([
                ("AWS_REGION", "us-east-1"),
                ("AWS_ACCESS_KEY_ID", "any"),
                ("AWS_SECRET_ACCESS_KEY", "any"),
            ])
            .env("NO_PROXY", "127.0.0.1")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        println!("process {}, its log: {}", process.id(), folder.join("log").display());
        Ok(Self { process, folder, grpc })
    }

    /// A client, once the program listens.
    pub(crate) async fn client(&self) -> anyhow::Result<CloudProviderClient<Channel>> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.grpc))?;
        for _ in 0..100 {
            match endpoint.connect().await {
                Ok(channel) => return Ok(CloudProviderClient::new(channel)),
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
        anyhow::bail!("nobody listens at {}", self.grpc)
    }

    /// What Linux tells now. An error if it has ended.
    pub(crate) fn look(&mut self) -> anyhow::Result<Look> {
        let ended = self.process.try_wait()?;
        anyhow::ensure!(ended.is_none(), "the program has ended: {ended:?}");
        let of = PathBuf::from("/proc").join(self.process.id().to_string());
        let status = std::fs::read_to_string(of.join("status"))?;
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let rss = rss.and_then(|rss| rss.trim().split(' ').next()?.parse().ok()).context("VmRSS")?;
        Ok(Look { rss, descriptors: std::fs::read_dir(of.join("fd"))?.count() })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(self.folder.join("kubeconfig"));
    }
}
