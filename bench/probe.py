"""Asks one member for one thing after the other until standard input ends; prints how long it took.

    python bench/probe.py HOST PORT get|set

The longest answer is the longest time for which the member served nobody. `kit.Probe` runs it.
"""

import json
import selectors
import sys
import time
from typing import Final

from zabd.cli.load import Connection
from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.ops import Create, CreateMode, GetData, SetData

PAUSE_S: Final = 0.001


def main() -> None:
    """See the top."""
    host, port, op = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    connection = Connection(host, port)
    path = "/zabd-bench-probe"
    connection.call(Create(path, b"", OPEN_ACL_UNSAFE, CreateMode.PERSISTENT))
    asked = GetData(path, watch=False) if op == "get" else SetData(path, b"probe", -1)
    took_ms: list[float] = []
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        print("ready", flush=True)
        while not (took_ms and selector.select(PAUSE_S)):
            began = time.perf_counter()
            if connection.call(asked) is None:
                sys.exit("the probe was answered with an error")
            took_ms.append((time.perf_counter() - began) * 1000)
    took_ms.sort()
    seen = {"count": len(took_ms), "longest_ms": took_ms[-1]}
    for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999)):
        seen[name] = took_ms[min(int(len(took_ms) * share), len(took_ms) - 1)]
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
