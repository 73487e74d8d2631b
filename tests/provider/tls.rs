//! mTLS: who is let in and for how long, certificates that change, and strangers who hold the door.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::Duration;

use ebbtide::provider::Tls;
use ebbtide::provider::proto::cloud_provider_client::CloudProviderClient;
use ebbtide::provider::proto::{NodeGroupIncreaseSizeRequest, NodeGroupsRequest};
use ebbtide::provider::tls::{TlsFile, TlsProblem};
use ebbtide::slots::Peer;
use ebbtide::telemetry::captured;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyUsagePurpose, date_time_ymd};
use rustls::HandshakeKind;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tokio::io::AsyncReadExt as _;
use tokio::time::Instant;
use tonic::transport::Endpoint;
use tracing::Level;

use crate::certificates::{Authority, Files, call, client, connect, handshake, shown};
use crate::world::{World, clock, web};

#[tokio::test]
async fn a_client_of_the_authority_is_let_in_and_nobody_else() {
    let files = Files::new("admission");
    let world = files.serve();
    let known = client(&files.servers, Some(&files.clients.sign("cluster-autoscaler")));
    assert_eq!(call(&world, &known).await, Ok(1));

    let stranger = client(&files.servers, Some(&Authority::new().sign("cluster-autoscaler")));
    assert!(call(&world, &stranger).await.is_err());
    let nameless = client(&files.servers, None);
    assert!(call(&world, &nameless).await.is_err());
    assert!(world.client().await.node_groups(NodeGroupsRequest {}).await.is_err());
    // And the client does not take any server.
    let misled = client(&Authority::new(), Some(&files.clients.sign("cluster-autoscaler")));
    assert!(call(&world, &misled).await.is_err());

    assert_eq!(call(&world, &known).await, Ok(1));
}

#[tokio::test]
async fn a_client_that_never_shakes_hands_keeps_nobody_waiting() {
    let files = Files::new("silence");
    let world = files.serve();
    let silent: Vec<_> = (0..8).map(|_| world.connect()).collect();
    let known = client(&files.servers, Some(&files.clients.sign("cluster-autoscaler")));
    assert_eq!(call(&world, &known).await, Ok(1));
    tokio::time::pause();
    for mut connection in silent {
        let mut byte = [0];
        assert_eq!(connection.read(&mut byte).await.expect("closed"), 0);
    }
}

#[tokio::test]
async fn changed_certificates_are_used_for_new_connections_and_broken_ones_never() {
    let mut files = Files::new("reload");
    let world = files.serve();
    let known = client(&files.servers, Some(&files.clients.sign("cluster-autoscaler")));
    let first = shown(&world, &known).await;

    files.new_certificate();
    let second = shown(&world, &known).await;
    assert_ne!(first, second);

    let (cert, key) = (files.options.cert.clone(), files.options.key.clone());
    files.write(&cert, "half a cert");
    assert_eq!(shown(&world, &known).await, second);
    // A certificate whose key has not been written yet.
    let next = files.servers.sign("provider");
    files.write(&cert, &next.cert);
    assert_eq!(shown(&world, &known).await, second);
    files.write(&key, &next.key);
    let third = shown(&world, &known).await;
    assert_eq!(third, CertificateDer::from_pem_slice(next.cert.as_bytes()).expect("PEM"));
    fs::remove_file(&key).expect("removed");
    assert_eq!(shown(&world, &known).await, third);
    files.write(&key, &next.key);

    // Another client authority: old clients are out.
    let clients = Authority::new();
    let authority = files.client_ca();
    files.write(&authority, &clients.pem);
    assert!(call(&world, &known).await.is_err());
    let new = client(&files.servers, Some(&clients.sign("cluster-autoscaler")));
    assert_eq!(call(&world, &new).await, Ok(1));
}

/// What is said of files that cannot be used, each with its flag's file.
fn problems(files: &Files) -> Vec<(TlsFile, String)> {
    let problems = Tls::load(files.options.clone(), clock()).err().into_iter().flatten();
    problems.map(|problem| (problem.file(), problem.to_string())).collect()
}

/// What is said of files that are used, and with which no connection succeeds.
fn untimely(files: &Files) -> Vec<(TlsFile, String)> {
    let tls = Tls::load(files.options.clone(), clock()).expect("used all the same");
    tls.untimely().into_iter().map(|problem| (problem.file(), problem.to_string())).collect()
}

#[test]
fn all_that_is_wrong_with_the_files_is_said_at_once() {
    let mut files = Files::new("problems");
    let options = files.options.clone();
    files.write(&options.cert, "no certificate");
    files.write(&files.client_ca(), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    fs::remove_file(&options.key).expect("removed");
    let about: Vec<_> = problems(&files).into_iter().map(|(file, _)| file).collect();
    assert_eq!(about, [TlsFile::Cert, TlsFile::Key, TlsFile::ClientCa]);

    files.new_certificate();
    let clients = files.clients.pem.clone();
    files.write(&files.client_ca(), &clients);
    let other = files.servers.sign("provider");
    files.write(&options.key, &other.key);
    let about: Vec<_> = problems(&files).into_iter().map(|(file, _)| file).collect();
    assert_eq!(about, [TlsFile::Key], "the key of another certificate");
}

/// That `change` of the server's certificate and of the clients' authority is told of both files with these words.
fn named(
    test: &str,
    change: impl Fn(&mut CertificateParams),
    told: fn(&Files) -> Vec<(TlsFile, String)>,
    words: [&str; 2],
) {
    let mut files = Files::new(test);
    let (cert, key) = (files.options.cert.clone(), files.options.key.clone());
    let mut params = CertificateParams::new(vec!["provider".to_owned()]).expect("a name");
    change(&mut params);
    let signed = files.servers.sign_with(&params);
    files.write(&cert, &signed.cert);
    files.write(&key, &signed.key);
    let authority = files.client_ca();
    files.write(&authority, &Authority::with(change).pem);
    let problems = told(&files);
    let about: Vec<_> = problems.iter().map(|(file, _)| *file).collect();
    assert_eq!(about, [TlsFile::Cert, TlsFile::ClientCa], "{problems:?}");
    for (((_, text), path), words) in problems.iter().zip([cert, authority]).zip(words) {
        assert!(text.contains(&path.display().to_string()) && text.contains(words), "{text}");
    }
}

#[test]
fn a_certificate_that_has_expired_is_named_with_its_end() {
    let words = ["expired at 2023-11-01T00:00:00Z"; 2];
    named("expired", |params| params.not_after = date_time_ymd(2023, 11, 1), untimely, words);
}

#[test]
fn a_certificate_that_is_not_valid_yet_is_named_with_its_beginning() {
    let words = ["not valid before 2023-12-01T00:00:00Z"; 2];
    named("early", |params| params.not_before = date_time_ymd(2023, 12, 1), untimely, words);
}

#[test]
fn a_certificate_for_another_use_is_named_with_what_it_lacks() {
    let other_use = |params: &mut CertificateParams| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    };
    named("usage", other_use, problems, ["lacks serverAuth", "lacks keyCertSign"]);
    let mut files = Files::new("no authority");
    let authority = files.client_ca();
    let client = files.clients.sign("cluster-autoscaler");
    files.write(&authority, &client.cert);
    let problems = problems(&files);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].0 == TlsFile::ClientCa && problems[0].1.contains("do not say CA"), "{problems:?}");
}

#[test]
fn an_authority_that_has_expired_may_stand_beside_its_successor() {
    let mut files = Files::new("successor");
    let old = Authority::with(|params| params.not_after = date_time_ymd(2023, 11, 1));
    let both = old.pem + &files.clients.pem;
    files.write(&files.client_ca(), &both);
    assert_eq!((problems(&files), untimely(&files)), (Vec::new(), Vec::new()));
}

#[tokio::test]
async fn a_certificate_that_changes_ends_no_call_under_way() {
    let mut files = Files::new("under way");
    let world = files.serve();
    let known = client(&files.servers, Some(&files.clients.sign("cluster-autoscaler")));
    let before = shown(&world, &known).await;
    let open = connect(&world, &known).await.expect("let in");
    let (mut grow, mut read) = (open.clone(), open);
    world.exists(&web(1));
    world.aws.delay(Duration::from_secs(1), Duration::ZERO);
    tokio::time::pause();
    let request = NodeGroupIncreaseSizeRequest { id: "web".into(), delta: 1 };
    let mut call = std::pin::pin!(grow.node_group_increase_size(request));
    assert!(futures::poll!(&mut call).is_pending());
    tokio::time::sleep(Duration::from_millis(500)).await;
    files.new_certificate();
    assert_ne!(shown(&world, &known).await, before, "a new connection gets the new one");
    assert!(futures::poll!(&mut call).is_pending(), "and the call is still under way");
    call.await.expect("a call under way is answered");
    read.node_groups(NodeGroupsRequest {}).await.expect("and so are later ones of its connection");
}

fn refused(world: &World, reason: &str) -> u64 {
    let start = format!("ebbtide_tls_clients_refused_total{{reason=\"{reason}\"}} ");
    let text = world.metrics();
    text.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok()).unwrap_or_default()
}

/// When what connections need of a file ends, as the metrics say.
fn not_after(world: &World, file: &str) -> Option<i64> {
    let text = world.metrics();
    let start = format!("ebbtide_tls_not_after_timestamp_seconds{{file=\"{file}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok())
}

#[tokio::test]
async fn of_the_authoritys_clients_only_those_of_the_names_are_let_in() {
    let mut files = Files::new("names");
    files.options.allowed_clients = vec!["cluster-autoscaler".to_owned(), "probe".to_owned()];
    let world = files.serve();
    for known in [
        files.clients.sign("cluster-autoscaler"),
        files.clients.sign("probe"),
        files.clients.sign_common_name("cluster-autoscaler"),
    ] {
        assert_eq!(call(&world, &client(&files.servers, Some(&known))).await, Ok(1));
    }
    for other in ["cluster-autoscaler.example", "web", "Cluster-Autoscaler"] {
        assert!(
            call(&world, &client(&files.servers, Some(&files.clients.sign(other)))).await.is_err(),
            "{other}"
        );
    }
    assert_eq!(refused(&world, "wrong_name"), 3);
    let forged = client(&files.servers, Some(&Authority::new().sign("cluster-autoscaler")));
    assert!(call(&world, &forged).await.is_err());
    assert_eq!(refused(&world, "unknown_authority"), 1);
}

#[tokio::test]
async fn a_client_that_does_not_take_our_certificate_is_no_stranger_at_the_port() {
    let mut files = Files::new("refuses ours");
    let world = files.serve();
    let own = files.clients.sign("cluster-autoscaler");
    // It knows another authority than signs ours now.
    assert!(call(&world, &client(&Authority::new(), Some(&own))).await.is_err());
    // Ours does not name the host that it calls; ours is over.
    let known = client(&files.servers, Some(&own));
    let others = [files.servers.sign("elsewhere"), files.servers.sign_until("provider", (2023, 11, 1))];
    let (cert, key) = (files.options.cert.clone(), files.options.key.clone());
    for other in others {
        files.write(&cert, &other.cert);
        files.write(&key, &other.key);
        assert!(call(&world, &known).await.is_err());
    }
    // And one speaks no TLS.
    assert!(world.client().await.node_groups(NodeGroupsRequest {}).await.is_err());
    let counted = || (refused(&world, "refuses_ours"), refused(&world, "protocol"));
    // A client has gone before the server reads why.
    let all = async {
        while counted().0 + counted().1 < 4 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), all).await.expect("all are counted as either");
    assert_eq!(counted(), (3, 1));
}

#[tokio::test]
async fn a_revoked_client_is_out_and_so_is_one_of_which_no_list_tells() {
    let mut files = Files::new("revocation");
    let list = files.options.cert.with_file_name("clients.crl");
    files.options.client_crl = Some(list.clone());
    let none = files.clients.revocations(&[]);
    files.write(&list, &none);
    let world = files.serve();
    let stolen = client(&files.servers, Some(&files.clients.sign_number("cluster-autoscaler", 7)));
    let known = client(&files.servers, Some(&files.clients.sign_number("cluster-autoscaler", 8)));
    assert_eq!(call(&world, &stolen).await, Ok(1));
    let revoked = files.clients.revocations(&[7]);
    files.write(&list, &revoked);
    assert!(call(&world, &stolen).await.is_err());
    assert_eq!(call(&world, &known).await, Ok(1));
    assert_eq!(refused(&world, "revoked"), 1);
    // A list that is damaged changes nothing; one of another authority says nothing of ours.
    files.write(&list, "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n");
    assert!(call(&world, &stolen).await.is_err());
    assert_eq!(call(&world, &known).await, Ok(1));
    let foreign = Authority::new().revocations(&[]);
    files.write(&list, &foreign);
    assert!(call(&world, &known).await.is_err());
}

#[tokio::test]
async fn a_client_shows_its_certificate_in_every_handshake() {
    let files = Files::new("resumption");
    let world = files.serve();
    let known = client(&files.servers, Some(&files.clients.sign("cluster-autoscaler")));
    for _ in 0..3 {
        assert_eq!(call(&world, &known).await, Ok(1));
        let stream = handshake(&world, &known).await.expect("let in");
        assert_ne!(stream.get_ref().1.handshake_kind(), Some(HandshakeKind::Resumed));
    }
}

#[tokio::test]
async fn connections_are_made_anew_before_they_are_old_and_a_removed_authority_loses_its_open_ones() {
    let mut files = Files::new("age");
    let world = Arc::new(files.serve());
    let known = client(&files.servers, Some(&files.clients.sign("cluster-autoscaler")));
    let dialled = Arc::new(Mutex::new(0));
    let (count, server) = (Arc::clone(&dialled), Arc::clone(&world));
    let connector = tower::service_fn(move |_: http::Uri| {
        *count.lock() += 1;
        let (server, known) = (Arc::clone(&server), known.clone());
        async move { Ok::<_, io::Error>(TokioIo::new(handshake(&server, &known).await?)) }
    });
    let channel = Endpoint::from_static("http://provider").connect_with_connector_lazy(connector);
    let mut client = CloudProviderClient::new(channel);
    tokio::time::pause();
    // As cluster-autoscaler does, every ten seconds, for half an hour.
    for _ in 0..180 {
        world.publish([web(1)]);
        client.node_groups(NodeGroupsRequest {}).await.expect("no call is lost");
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(*dialled.lock(), 3);

    let authority = files.client_ca();
    files.write(&authority, &Authority::new().pem);
    let refused = async {
        while client.node_groups(NodeGroupsRequest {}).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(10)).await;
            world.publish([web(1)]);
        }
    };
    tokio::time::timeout(Duration::from_mins(11), refused).await.expect("its connection ends");
}

#[tokio::test]
async fn files_that_are_exchanged_by_a_symbolic_link_are_noticed_though_nobody_connects() {
    let mut files = Files::new("mounted");
    let mounted = files.options.cert.with_file_name("mounted");
    let _ = fs::remove_dir_all(&mounted);
    let authority = fs::read_to_string(files.client_ca()).expect("written");
    let generation = |files: &mut Files, name: &str, year: i32| {
        let signed = files.servers.sign_until("provider", (year, 1, 1));
        let directory = mounted.join(name);
        fs::create_dir_all(&directory).expect("a directory");
        for (file, content) in [("tls.crt", &signed.cert), ("tls.key", &signed.key), ("ca.crt", &authority)] {
            // Of the same moment, as files of one volume may be.
            files.changes = 0;
            files.write(&directory.join(file), content);
        }
        let next = mounted.join("next");
        symlink(&directory, &next).expect("a link");
        fs::rename(&next, mounted.join("data")).expect("exchanged");
    };
    generation(&mut files, "1", 3001);
    let file = |name: &str| mounted.join("data").join(name);
    (files.options.cert, files.options.key) = (file("tls.crt"), file("tls.key"));
    files.options.client_ca = Some(file("ca.crt"));
    let world = files.serve();
    tokio::time::pause();
    let used = async |end| {
        let used = async {
            while not_after(&world, "certificate") != Some(end) {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), used).await.expect("the certificate is used");
    };
    used(32_535_216_000).await;
    generation(&mut files, "2", 3002);
    used(32_566_752_000).await;
}

#[tokio::test]
async fn a_certificate_that_ends_is_warned_about_every_day_from_two_weeks_before() {
    let (log, _guard) = captured::log(Level::INFO);
    let mut files = Files::new("expiry");
    // Two weeks and two hours after the world's clock begins.
    let signed = files.servers.sign_until("provider", (2023, 11, 29));
    let (cert, key) = (files.options.cert.clone(), files.options.key.clone());
    files.write(&cert, &signed.cert);
    files.write(&key, &signed.key);
    let _world = files.serve();
    tokio::time::pause();
    let warnings = || log.text().matches("expires soon").count();
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(warnings(), 0);
    tokio::time::sleep(Duration::from_hours(2)).await;
    assert_eq!(warnings(), 1, "{}", log.text());
    assert!(
        log.text().contains(&format!("path=\"{}\"", cert.display())),
        "it names the file: {}",
        log.text()
    );
    tokio::time::sleep(Duration::from_hours(24)).await;
    assert_eq!(warnings(), 2);
}

#[tokio::test]
async fn what_ends_within_two_weeks_or_has_ended_is_told_by_its_file() {
    let told = |file: &str, end| {
        let mut files = Files::new(&format!("ending-{file}"));
        let signed = files.servers.sign_until("provider", end);
        let (cert, key) = (files.options.cert.clone(), files.options.key.clone());
        files.write(&cert, &signed.cert);
        files.write(&key, &signed.key);
        let tls = Tls::load(files.options.clone(), clock()).expect("usable");
        let told = tls.ending();
        assert!(told.iter().all(|problem| problem.file() == TlsFile::Cert), "{told:?}");
        told.iter().map(ToString::to_string).collect::<String>()
    };
    assert_eq!(told("later", (2023, 12, 1)), "");
    let soon = told("soon", (2023, 11, 28));
    assert!(soon.ends_with("tls.crt ends at 2023-11-28T00:00:00Z"), "{soon}");
    let over = told("over", (2023, 11, 1));
    assert!(over.contains("lets no connection succeed") && !over.contains("ends at"), "once: {over}");
}

#[tokio::test]
async fn the_metric_tells_the_end_of_what_connections_cannot_do_without() {
    let mut files = Files::new("needed");
    let over = |params: &mut CertificateParams| params.not_after = date_time_ymd(2023, 11, 1);
    let leaf = files.servers.sign_until("provider", (2024, 1, 1));
    let chain = leaf.cert + &Authority::with(over).pem;
    let successor = Authority::with(|params| params.not_after = date_time_ymd(2025, 1, 1));
    let authorities = Authority::with(over).pem + &successor.pem;
    let lists = files.clients.revocations_until(&[], (2023, 11, 2))
        + &successor.revocations_until(&[], (2023, 12, 1));
    let crl = files.options.cert.with_file_name("clients.crl");
    files.options.client_crl = Some(crl.clone());
    let (cert, key) = (files.options.cert.clone(), files.options.key.clone());
    for (path, content) in [(cert, chain), (key, leaf.key), (files.client_ca(), authorities), (crl, lists)] {
        files.write(&path, &content);
    }
    let world = files.serve();
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let told =
        ["certificate", "client_authority", "client_revocation_list"].map(|file| not_after(&world, file));
    // 2024-01-01, 2025-01-01 and, of lists the first, 2023-11-02.
    assert_eq!(told, [Some(1_704_067_200), Some(1_735_689_600), Some(1_698_883_200)]);
    // What is over beside them is told to people all the same.
    let tls = Tls::load(files.options.clone(), clock()).expect("usable");
    let over: Vec<_> = tls.ending().iter().map(TlsProblem::file).collect();
    assert_eq!(over, [TlsFile::Cert, TlsFile::ClientCa, TlsFile::ClientCrl]);
}

#[test]
fn a_revocation_list_is_told_of_once_it_is_over() {
    let told = |name: &str, next| {
        let mut files = Files::new(name);
        let crl = files.options.cert.with_file_name("clients.crl");
        files.options.client_crl = Some(crl.clone());
        let list = files.clients.revocations_until(&[], next);
        files.write(&crl, &list);
        let tls = Tls::load(files.options.clone(), clock()).expect("usable");
        tls.ending().iter().map(ToString::to_string).collect::<String>()
    };
    assert_eq!(told("list-for-a-day", (2023, 11, 15)), "");
    let over = told("list-over", (2023, 11, 14));
    assert!(over.ends_with("clients.crl ends at 2023-11-14T00:00:00Z"), "{over}");
}

#[tokio::test]
async fn strangers_cannot_fill_the_log_and_every_one_of_them_is_counted() {
    let (log, _guard) = captured::log(Level::INFO);
    let files = Files::new("strangers");
    let world = files.serve();
    let nameless = client(&files.servers, None);
    for _ in 0..20 {
        assert!(call(&world, &nameless).await.is_err());
    }
    let told: Vec<_> =
        log.text().lines().filter(|l| l.contains("a client was refused")).map(str::to_owned).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("peer=local") && told[0].contains("no_certificate"), "{told:?}");
    assert_eq!(refused(&world, "no_certificate"), 20);
    assert!(
        log.text().contains("name the clients that may with --allowed-client"),
        "without names everybody signed is let in"
    );
}

#[tokio::test]
async fn silent_connections_keep_nobody_out() {
    let files = Files::new("crowd");
    let world = files.serve();
    let known = client(&files.servers, Some(&files.clients.sign("cluster-autoscaler")));
    tokio::time::pause();
    let began = Instant::now();
    let from = |n: u8| Peer::of(std::net::Ipv4Addr::new(10, 0, 0, n).into());
    // Some peers with many connections each, then many with one.
    let mut silent: Vec<_> = (0..200).map(|n| world.connect_from(from(n % 3))).collect();
    assert_eq!(call(&world, &known).await, Ok(1));
    silent.extend((0..200).map(|n| world.connect_from(from(n))));
    assert_eq!(call(&world, &known).await, Ok(1));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert!(refused(&world, "crowded_out") > 200);
}
