//! Where the files of a control group are.
//!
//! `/proc/PID/cgroup` names the group of a process in each hierarchy; `/proc/self/mountinfo` says
//! where hierarchies are mounted, and from which of their groups on. With group `P`, mounted from
//! group `R` at `M`:
//!
//! ```text
//! directory = M / (P relative to R)
//! ```
//!
//! | layout | P | R | directory |
//! |---|---|---|---|
//! | no container | `/system.slice/x` | `/` | `M/system.slice/x` |
//! | container, own cgroup namespace | `/` | `/` | `M` |
//! | container that sees the host's names | `/docker/1f` | `/docker/1f` | `M` |
//!
//! A hierarchy may be mounted several times (containers in containers, monitoring that mounts the
//! host's): the mount with the longest `R` that `P` lies in is the closest; a later mount hides an
//! earlier one. If `P` lies in none, names and mounts are of different namespaces; then `M/P` if
//! there is such a directory, else `M`, which in a container is its own group. A `P` that begins
//! with `/..` is outside of our namespace, and there is no way to its files.

use super::files::Files;
use std::path::{Component, Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V2,
}

/// One mount of a hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    version: Version,
    /// Of version 1: which controllers it has, among other options.
    options: Vec<String>,
    root: PathBuf,
    point: PathBuf,
}

/// The mounts of control groups in a `mountinfo`. Lines that make no sense are left out.
pub(super) fn mounts(mountinfo: &str) -> Vec<Mount> {
    mountinfo.lines().filter_map(mount).collect()
}

/// `36 35 98:0 /root /point opts optional... - fstype source superopts`
fn mount(line: &str) -> Option<Mount> {
    let (place, kind) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (root, point) = (unescape(place.next()?), unescape(place.next()?));
    let mut kind = kind.split(' ');
    let version = match kind.next()? {
        "cgroup" => Version::V1,
        "cgroup2" => Version::V2,
        _ => return None,
    };
    let options = kind.nth(1).unwrap_or_default().split(',').map(str::to_owned).collect();
    Some(Mount { version, options, root: root.into(), point: point.into() })
}

/// Spaces and the like are written as three octal digits after a backslash.
fn unescape(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, after @ ..] = rest {
        let escaped = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &rest[4..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// In which group of a hierarchy a process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Membership {
    /// Of version 1; of version 2 none is named.
    controllers: Option<Vec<String>>,
    path: PathBuf,
}

/// The lines `number:controllers:path` of `/proc/PID/cgroup`.
pub(super) fn memberships(cgroup: &str) -> Vec<Membership> {
    let line = |line: &str| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        if !path.starts_with('/') {
            return None;
        }
        let v2 = number == "0" && controllers.is_empty();
        let named = || controllers.split(',').map(str::to_owned).collect();
        Some(Membership { controllers: (!v2).then(named), path: path.into() })
    };
    cgroup.lines().filter_map(line).collect()
}

/// The group named by hand: the same name in every hierarchy.
pub(super) fn named(path: &Path) -> Vec<Membership> {
    let v1 = ["cpu", "cpuacct", "memory", "cpuset"].map(str::to_owned).to_vec();
    let path = PathBuf::from("/").join(path);
    vec![
        Membership { controllers: Some(v1), path: path.clone() },
        Membership { controllers: None, path },
    ]
}

/// A group's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) version: Version,
    pub(super) directory: PathBuf,
    /// The highest directory that can be seen of its hierarchy.
    top: PathBuf,
}

impl Place {
    /// The directory and those above it, up to where the hierarchy is mounted.
    pub(super) fn levels(&self) -> impl Iterator<Item = &Path> {
        self.directory.ancestors().take_while(|level| level.starts_with(&self.top))
    }
}

/// Where `controller` of the group is, in a hierarchy of version 1 if it has one.
pub(super) fn place(
    controller: &str,
    mounts: &[Mount],
    memberships: &[Membership],
    files: &Files,
) -> Option<Place> {
    let named = |names: &[String]| names.iter().any(|name| name == controller);
    let v1 = memberships.iter().find(|m| m.controllers.as_deref().is_some_and(named));
    let v1_mounts = mounts.iter().filter(|m| m.version == Version::V1 && named(&m.options));
    v1.and_then(|member| in_hierarchy(member, v1_mounts, files))
        .or_else(|| unified(mounts, memberships, files))
}

/// Where the group is in the hierarchy of version 2.
pub(super) fn unified(
    mounts: &[Mount],
    memberships: &[Membership],
    files: &Files,
) -> Option<Place> {
    let member = memberships.iter().find(|member| member.controllers.is_none())?;
    in_hierarchy(member, mounts.iter().filter(|m| m.version == Version::V2), files)
}

fn in_hierarchy<'a>(
    member: &Membership,
    mounts: impl Iterator<Item = &'a Mount> + Clone,
    files: &Files,
) -> Option<Place> {
    let climbs = |path: &Path| path.components().any(|part| part == Component::ParentDir);
    let below = |mount: &'a Mount| {
        let relative = member.path.strip_prefix(&mount.root).ok()?;
        (!climbs(relative)).then(|| (mount, join(&mount.point, relative)))
    };
    let closest =
        mounts.clone().filter_map(below).max_by_key(|(mount, _)| mount.root.components().count());
    let (mount, directory) = closest.or_else(|| {
        let mount = mounts.last().filter(|_| !climbs(&member.path))?;
        let same_name = join(&mount.point, member.path.strip_prefix("/").ok()?);
        let there = files.exists(&same_name);
        Some((mount, if there { same_name } else { mount.point.clone() }))
    })?;
    Some(Place { version: mount.version, directory, top: mount.point.clone() })
}

/// Joining nothing would end in a slash.
fn join(point: &Path, relative: &Path) -> PathBuf {
    if relative.as_os_str().is_empty() { point.to_owned() } else { point.join(relative) }
}
