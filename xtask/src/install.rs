//! What the other steps need on the machine, and where it comes from.
//!
//! [`NEEDS`] is the one place to add to. A thing is there if its probe answers; else it is
//! installed by package name; and if that does not help, the run fails: a check that is skipped
//! because its tool is missing would be a check that nobody runs.

use crate::command::{line, read, run, succeeds};

/// Something that steps cannot do without.
struct Need {
    /// A command that succeeds only where the thing is there.
    probe: &'static str,
    /// What it is called where it comes from.
    packages: &'static str,
    from: &'static Installer,
}

/// A way to install packages by name.
struct Installer {
    /// Brings the list of packages up to date. It may fail in part: installing is what counts.
    refresh: Option<&'static str>,
    /// The names go behind this.
    install: &'static str,
    as_root: bool,
}

const CARGO: Installer =
    Installer { refresh: None, install: "cargo install --locked", as_root: false };

const RUSTUP: Installer =
    Installer { refresh: None, install: "rustup component add", as_root: false };

const APT: Installer = Installer {
    refresh: Some("apt-get update"),
    install: "env DEBIAN_FRONTEND=noninteractive apt-get install -y",
    as_root: true,
};

/// An environment of Python's, apart from the machine's packages and from ourselves.
const VENV: Installer =
    Installer { refresh: None, install: "python3 -m venv --clear", as_root: false };

/// Into that environment. Wheels only: a package that has to be built would run code of its own
/// here, and need a compiler.
const PIP: Installer = Installer {
    refresh: None,
    install: "target/peers/venv/bin/python -m pip install --disable-pip-version-check --no-input \
              --only-binary :all: --requirement",
    as_root: false,
};

/// Everything there has to be, beside Rust. Programs that tests talk to belong here too.
const NEEDS: &[Need] = &[
    // Whoever built xtask has a linker, but it need not be called `cc`, which is what build scripts
    // of crates with C in them look for.
    Need { probe: "cc --version", packages: "gcc libc6-dev", from: &APT },
    Need { probe: "cargo fmt --version", packages: "rustfmt", from: &RUSTUP },
    Need { probe: "cargo clippy --version", packages: "clippy", from: &RUSTUP },
    Need { probe: "cargo nextest --version", packages: "cargo-nextest", from: &CARGO },
    Need { probe: "cargo deny --version", packages: "cargo-deny", from: &CARGO },
    // Debian splits off what makes an environment with pip in it.
    Need {
        probe: "python3 -c __import__('ensurepip')",
        packages: "python3 python3-venv",
        from: &APT,
    },
    Need { probe: "target/peers/venv/bin/python -m pip --version", packages: PEERS, from: &VENV },
    Need {
        probe: "target/peers/venv/bin/python crates/tidegate/tests/peers/there.py",
        packages: "crates/tidegate/tests/peers/requirements.txt",
        from: &PIP,
    },
    // The dashboard is looked at in it, and metrics are scraped by it.
    Need { probe: "chromium --version", packages: "chromium", from: &APT },
    Need { probe: "prometheus --version", packages: "prometheus", from: &APT },
    // Quota servers elect one by it.
    Need { probe: "etcd --version", packages: "etcd-server", from: &APT },
    // A kernel whose limits are ours to set.
    Need { probe: "linux.uml --version", packages: "user-mode-linux", from: &APT },
];

/// Where the peers are that tests talk to, in the root of the repository.
pub(crate) const PEERS: &str = "target/peers/venv";

/// Installs what is missing.
pub(crate) fn step() -> Result<(), String> {
    for need in NEEDS {
        if succeeds(&mut line(need.probe)) {
            continue;
        }
        install(need, is_root())?;
    }
    Ok(())
}

fn install(need: &Need, root: bool) -> Result<(), String> {
    println!("  `{}` does not answer; installing {}", need.probe, need.packages);
    if let Some(refresh) = refresh_line(need.from, root)
        && let Err(error) = run(&mut line(&refresh))
    {
        println!("  going on although {error}");
    }
    run(&mut line(&install_line(need, root)))?;
    if succeeds(&mut line(need.probe)) {
        return Ok(());
    }
    Err(format!("{} was installed, but `{}` still does not answer", need.packages, need.probe))
}

fn refresh_line(from: &Installer, root: bool) -> Option<String> {
    from.refresh.map(|refresh| format!("{}{refresh}", prefix(from, root)))
}

fn install_line(need: &Need, root: bool) -> String {
    format!("{}{} {}", prefix(need.from, root), need.from.install, need.packages)
}

/// Never waits for a password.
fn prefix(from: &Installer, root: bool) -> &'static str {
    if from.as_root && !root { "sudo -n " } else { "" }
}

fn is_root() -> bool {
    read(&mut line("id -u")).is_ok_and(|id| id.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_system_packages_need_root() {
        for need in NEEDS {
            let as_user = install_line(need, false);
            assert_eq!(as_user.starts_with("sudo -n "), need.from.as_root, "{as_user}");
            assert!(!install_line(need, true).contains("sudo"));
            assert!(as_user.ends_with(need.packages));
        }
        assert_eq!(refresh_line(&APT, false).as_deref(), Some("sudo -n apt-get update"));
        assert_eq!(refresh_line(&CARGO, true), None);
    }

    #[test]
    fn what_cannot_be_installed_is_a_failure() {
        const NOWHERE: Installer = Installer { refresh: None, install: "false", as_root: false };
        const USELESS: Installer = Installer { refresh: None, install: "true", as_root: false };
        let need = |from| Need { probe: "no-such-program-here", packages: "thing", from };
        let error = install(&need(&NOWHERE), true).unwrap_err();
        assert!(error.contains("`false thing`"), "{error}");
        let error = install(&need(&USELESS), true).unwrap_err();
        assert!(error.contains("still does not answer"), "{error}");
    }
}
