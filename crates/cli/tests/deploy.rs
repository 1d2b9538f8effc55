//! The files under `deploy/` fit the binary, each other, and what reads them.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn tidegate() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
}

/// Whether these are flags of the command that stands before them.
#[track_caller]
fn check_flags(words: &[&str]) {
    let help = tidegate().args([words[0], "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let flags = words.iter().filter(|word| word.starts_with("--"));
    assert!(flags.clone().count() > 0, "{words:?}");
    for flag in flags {
        assert!(help.contains(&format!("{flag} ")), "{flag} is no flag of {}", words[0]);
    }
}

fn manifests() -> Vec<Value> {
    let text = std::fs::read_to_string(folder().join("kubernetes/sidecar.yaml")).unwrap();
    text.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn of_kind<'a>(manifests: &'a [Value], kind: &str) -> &'a Value {
    manifests.iter().find(|manifest| manifest["kind"] == kind).unwrap()
}

/// Seconds of a span such as `10s`.
fn seconds(value: &Value) -> u64 {
    value.as_str().unwrap().strip_suffix('s').unwrap().parse().unwrap()
}

#[test]
fn the_pod_runs_what_the_binary_knows() {
    let manifests = manifests();
    let text = of_kind(&manifests, "ConfigMap")["data"]["proxy.yaml"].as_str().unwrap();
    let file = std::env::temp_dir().join(format!("tidegate-deploy-{}.yaml", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let checked = tidegate().arg("check").arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let config: Value = serde_saphyr::from_str(text).unwrap();
    let pod = &of_kind(&manifests, "Deployment")["spec"]["template"];
    let containers = pod["spec"]["containers"].as_array().unwrap();
    let [proxy, program] = &containers[..] else { panic!("{containers:?}") };
    let args: Vec<&str> =
        proxy["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    check_flags(&args);
    // Ports by name are those that it listens at.
    for (name, key) in [("http", "listen"), ("admin", "admin")] {
        let ports = proxy["ports"].as_array().unwrap();
        let port = ports.iter().find(|port| port["name"] == name).unwrap();
        let listens = config[key].as_str().unwrap().rsplit_once(':').unwrap().1;
        assert_eq!(port["containerPort"].to_string(), listens);
    }
    for (probe, path) in
        [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")]
    {
        assert_eq!(proxy[probe]["httpGet"]["path"], path);
        assert_eq!(proxy[probe]["httpGet"]["port"], "admin");
    }
    // The program is where the proxy looks for it, and outlives it.
    assert_eq!(program["args"][1], config["upstream"]);
    let stays = program["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap();
    let drain = seconds(&config["drain"]["delay"]) + seconds(&config["drain"]["limit"]);
    let grace = pod["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(drain < stays && stays < grace, "{drain} {stays} {grace}");
    let service = of_kind(&manifests, "Service");
    assert_eq!(service["spec"]["selector"], pod["metadata"]["labels"]);
    assert_eq!(service["spec"]["ports"][0]["targetPort"], "http");
}

#[test]
fn the_unit_runs_what_the_binary_knows() {
    let unit = std::fs::read_to_string(folder().join("systemd/tidegate-proxy@.service")).unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let words: Vec<&str> = start.split(' ').collect();
    assert_eq!(words[0], "/usr/bin/tidegate");
    check_flags(&words[1..]);
    let folder = std::env::temp_dir().join(format!("tidegate-unit-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    // It looks whether the program is there.
    let there = unit.replace(words[0], env!("CARGO_BIN_EXE_tidegate"));
    let verify = |name: &str, text: &str| {
        let file = folder.join(name);
        std::fs::write(&file, text).unwrap();
        Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(file).output()
    };
    match verify("tidegate-proxy@shop.service", &there) {
        Ok(verified) => {
            let said = String::from_utf8_lossy(&verified.stderr).into_owned();
            assert!(verified.status.success() && said.is_empty(), "{said}");
            let wrong = there.replace("ExecReload=", "ExecReloads=");
            let verified = verify("tidegate-wrong@shop.service", &wrong).unwrap();
            assert!(!verified.stderr.is_empty(), "it would not have said");
        }
        Err(error) => eprintln!("left out: systemd-analyze is not here: {error}"),
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
