//! `tidegate quota` with certificates, as a user runs it.

#![allow(clippy::unwrap_used)]

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

fn tidegate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> (i32, String) {
    let Output { status, stdout, stderr } = tidegate(arguments).output().unwrap();
    let text = String::from_utf8([stdout, stderr].concat()).unwrap();
    (status.code().unwrap(), text)
}

/// A process that is killed with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory with an authority, and certificates of whoever is asked for.
struct Files {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Files {
    fn new() -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("quota-tls");
        std::fs::create_dir_all(&directory).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap().pem();
        std::fs::write(directory.join("ca.pem"), root).unwrap();
        Self { directory, issuer: Issuer::new(params, key) }
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn sign(&self, file: &str, name: SanType) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![name];
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        std::fs::write(self.path(&format!("{file}.pem")), certificate).unwrap();
        std::fs::write(self.path(&format!("{file}.key")), key.serialize_pem()).unwrap();
    }
}

#[test]
fn a_server_with_certificates_tells_operators_and_refuses_the_rest() {
    let files = Files::new();
    files.sign("server", SanType::IpAddress("127.0.0.1".parse().unwrap()));
    let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
    files.sign("oncall", dns("oncall.example.org"));
    files.sign("other", dns("other.example.org"));
    let config = files.path("quota.yaml");
    let text = format!(
        "quota:\n  tls: {{ cert: {}, key: {}, client_ca: {} }}\n  operators: \
         [dns:oncall.example.org]\n  services:\n    search: {{ default: 1, tasks: [dns:a.b] }}\n",
        files.path("server.pem"),
        files.path("server.key"),
        files.path("ca.pem")
    );
    std::fs::write(&config, &text).unwrap();
    let mut command = tidegate(&["quota", "--config", &config, "--listen", "127.0.0.1:0"]);
    let mut server = Process(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut hello = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut hello).unwrap();
    assert!(hello.contains("; callers prove who they are by certificates"), "{hello}");
    let address = hello.split_once("listens on ").unwrap().1.split(',').next().unwrap();
    let url = format!("https://{address}");
    let ca = files.path("ca.pem");
    let ask = |who: &str| {
        let (cert, key) = (files.path(&format!("{who}.pem")), files.path(&format!("{who}.key")));
        run(&["quota", "status", &url, "--ca", &ca, "--cert", &cert, "--key", &key])
    };
    let (code, told) = ask("oncall");
    assert!(code == 0 && told.contains("search: 0 tasks"), "{told}");
    let (code, told) = ask("other");
    assert!(code != 0 && told.contains("dns:other.example.org may not see"), "{told}");
    let (code, told) = run(&["quota", "status", &url, "--ca", &ca]);
    assert!(code != 0 && told.contains("no certificate was shown"), "{told}");
    let (code, told) = run(&["quota", "status", &format!("http://{address}")]);
    assert!(code != 0, "{told}");
    let (code, told) = run(&["quota", "status", &url, "--cert", &ca]);
    assert!(code == 2 && told.contains("--key"), "{told}");

    // Whom nobody can prove to be is not let in from elsewhere.
    let open = files.path("open.yaml");
    std::fs::write(&open, "quota: { services: { search: { default: 1 } } }\n").unwrap();
    let (code, told) = run(&["quota", "--config", &open, "--listen", "0.0.0.0:0"]);
    assert!(code != 0 && told.contains("0.0.0.0:0 can be reached by other machines"), "{told}");
    assert!(told.contains("trust_network: true"), "{told}");
    // Certificates that are not there are an error at the start, and say which.
    std::fs::write(&config, text.replace("server.pem", "none.pem")).unwrap();
    let (code, told) = run(&["quota", "--config", &config, "--listen", "127.0.0.1:0"]);
    assert!(code != 0 && told.contains("none.pem: the certificates cannot be read"), "{told}");
}
