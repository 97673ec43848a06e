"""A daemon that starts as `zabd` does, and becomes a member of etcd with the ports of that file.

    python bench/etcd_member.py --config zoo.cfg --id N

Settings are etcd's own but for room (8 GiB), as it keeps every version until it is compacted.
"""

import argparse
import os
import re
from pathlib import Path

QUOTA_BYTES = 8 << 30
LINE = re.compile(r"server\.(\d+)=([^:]+):(\d+):(\d+);[^:]+:(\d+)")


def main() -> None:
    """Become etcd."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--id", type=int, required=True)
    given = parser.parse_args()
    found = LINE.findall(given.config.read_text(encoding="utf-8"))
    peers = {int(number): f"http://{host}:{peer}" for number, host, peer, _, _ in found}
    clients = {int(number): f"http://{host}:{port}" for number, host, _, _, port in found}
    me = given.id
    command = ["etcd", "--name", f"e{me}", "--data-dir", str(given.config.parent / "data" / "etcd")]
    command += ["--listen-client-urls", clients[me], "--advertise-client-urls", clients[me]]
    command += ["--listen-peer-urls", peers[me], "--initial-advertise-peer-urls", peers[me]]
    command += ["--initial-cluster", ",".join(f"e{n}={url}" for n, url in peers.items())]
    command += ["--quota-backend-bytes", str(QUOTA_BYTES), "--logger", "zap"]
    command += ["--log-level", "warn"]
    os.execvp("etcd", command)  # noqa: S606, S607 - it takes this process's place


if __name__ == "__main__":
    main()
