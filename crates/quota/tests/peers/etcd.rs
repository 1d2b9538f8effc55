//! A real etcd that asks for certificates and for a user.

use crate::authority::Authority;
use core::time::Duration;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tidegate_quota::etcd::{Etcd, EtcdError, EtcdUser};
use tidegate_wire::proto::etcdserverpb as wire;
use tidegate_wire::proto::etcdserverpb::auth_client::AuthClient;
use tonic::Code;

/// Answers come when the disk has what was asked, which takes long on one that others use.
const WITHIN: Duration = Duration::from_secs(60);

/// Killed with the test.
struct Process {
    child: Child,
    folder: PathBuf,
}

impl Process {
    /// What it has said.
    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// One member on loopback, by TLS, which wants certificates of `authority`.
fn start(authority: &Authority) -> (Process, SocketAddr) {
    let folder = std::env::temp_dir().join(format!("tidegate-etcd-tls-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    authority.write(&folder, "127.0.0.1");
    let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [client, peer] = ports.map(|port| port.local_addr().unwrap());
    let file = |name: &str| folder.join(name);
    let log = std::fs::File::create(file("log")).unwrap();
    let child = Command::new("etcd")
        .arg("--data-dir")
        .arg(file("data"))
        .args(["--listen-client-urls", &format!("https://{client}")])
        .args(["--advertise-client-urls", &format!("https://{client}")])
        .args(["--listen-peer-urls", &format!("http://{peer}")])
        .args(["--initial-advertise-peer-urls", &format!("http://{peer}")])
        .args(["--name", "m", "--initial-cluster", &format!("m=http://{peer}")])
        .arg("--cert-file")
        .arg(file("cert.pem"))
        .arg("--key-file")
        .arg(file("key.pem"))
        .arg("--trusted-ca-file")
        .arg(file("ca.pem"))
        .args(["--client-cert-auth", "--auth-token", "simple"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("TIDEGATE_PEERS is set, but there is no etcd: `cargo xtask test --only install`");
    let process = Process { child, folder };
    let mut patience = 400;
    while TcpStream::connect(client).is_err() {
        patience -= 1;
        assert!(patience > 0, "etcd never listened");
        std::thread::sleep(Duration::from_millis(50));
    }
    (process, client)
}

fn password(folder: &Path, text: &str) -> EtcdUser {
    let file = folder.join("password");
    std::fs::write(&file, text).unwrap();
    EtcdUser::new("root", file)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_asks_for_certificates_and_users_is_shown_both() {
    if !crate::asked("etcd by TLS") {
        return;
    }
    let authority = Authority::new();
    let (process, address) = start(&authority);
    let url = format!("https://{address}");
    let shown = || Some(authority.client("quota.example.org"));

    let etcd = Etcd::secured([&url], shown(), None).unwrap();
    // It listens before it serves: until it has a leader nobody shakes hands, or it says no.
    let mut patience = 100;
    while let Err(error) = etcd.put("/q/a", "1", WITHIN).await {
        patience -= 1;
        let serves = !matches!(error, EtcdError::Silent { .. });
        assert!(!serves && patience > 0, "{error}\n{}", process.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(etcd.get("/q/a", WITHIN).await.unwrap().unwrap().value, b"1");
    // Who shows none, or believes somebody else, is not let in, and does not believe.
    let strangers = Authority::new();
    let mut stranger = authority.client("");
    stranger.identity = strangers.client("quota.example.org").identity;
    for (tls, what) in [
        (authority.client(""), "wants a certificate and is shown none"),
        (stranger, "refuses the certificate it is shown"),
        (strangers.client("quota.example.org"), "is not believed"),
    ] {
        let error = Etcd::secured([&url], Some(tls), None).unwrap().get("/q/a", WITHIN).await;
        let error = error.unwrap_err();
        assert!(matches!(error, EtcdError::Certificates { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }

    let mut auth = AuthClient::new(authority.channel(address, "quota.example.org").await);
    let user = wire::AuthUserAddRequest { name: "root".into(), password: "secret".into() };
    auth.user_add(user).await.unwrap();
    // It is there in some versions.
    let _ = auth.role_add(wire::AuthRoleAddRequest { name: "root".into() }).await;
    let role = wire::AuthUserGrantRoleRequest { user: "root".into(), role: "root".into() };
    auth.user_grant_role(role).await.unwrap();
    auth.auth_enable(wire::AuthEnableRequest {}).await.unwrap();

    let nobody = Etcd::secured([&url], shown(), None).unwrap();
    assert!(matches!(nobody.get("/q/a", WITHIN).await, Err(EtcdError::Refused { .. })));
    let user = password(&process.folder, "wrong\n");
    let etcd = Etcd::secured([&url], shown(), Some(user.clone())).unwrap();
    let refused = etcd.get("/q/a", WITHIN).await.unwrap_err();
    assert!(matches!(refused, EtcdError::Refused { code: Code::InvalidArgument, .. }), "{refused}");
    // The file is read again, and the line at its end does not count.
    password(&process.folder, "secret\n");
    assert_eq!(etcd.get("/q/a", WITHIN).await.unwrap().unwrap().value, b"1");
    let lease = etcd.grant(5, WITHIN).await.unwrap();
    assert!(etcd.keep_alive(lease, WITHIN).await.unwrap());
    // Rights that change make tokens old: calls ask for another by themselves.
    let renewed = auth_of(&authority, address).await;
    let mut role = tonic::Request::new(wire::AuthRoleAddRequest { name: "other".into() });
    role.metadata_mut().insert("token", renewed.parse().unwrap());
    auth.role_add(role).await.unwrap();
    etcd.put("/q/a", "2", WITHIN).await.unwrap();
    std::fs::remove_file(&user.password_file).unwrap();
    let fresh = Etcd::secured([&url], shown(), Some(user)).unwrap();
    let unread = fresh.get("/q/a", WITHIN).await.unwrap_err();
    assert!(unread.to_string().contains("the password of etcd's user root"), "{unread}");
}

/// A token of the user's.
async fn auth_of(authority: &Authority, address: SocketAddr) -> String {
    let mut auth = AuthClient::new(authority.channel(address, "quota.example.org").await);
    let ask = wire::AuthenticateRequest { name: "root".into(), password: "secret".into() };
    auth.authenticate(ask).await.unwrap().into_inner().token
}
