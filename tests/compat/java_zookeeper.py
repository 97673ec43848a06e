"""Debian's ZooKeeper, the reference: where it is, and a daemon that starts like `zabd` does.

``python java_zookeeper.py --config zoo.cfg --id N`` takes what `zabd` takes and becomes the Java
server, so whatever lays out an ensemble of ours lays out one of theirs.
"""

import argparse
import os
import sys
from pathlib import Path

JARS = Path("/usr/share/java")
# zookeeper.jar names most of what it needs; the packages of netty and of the log are not in there.
CLASSPATH_JARS = (
    "zookeeper.jar",
    "slf4j-log4j12.jar",
    "log4j-1.2.jar",
    "netty-codec.jar",
    "netty-resolver.jar",
    "netty-transport-native-unix-common.jar",
)
PACKAGES = ("zookeeper", "openjdk-17-jre-headless", "libslf4j-java", "liblog4j1.2-java")
VERSION = "3.8.0"
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
PROPERTIES = {
    "zookeeper.admin.enableServer": "false",
    "zookeeper.extendedTypesEnabled": "true",
    "zookeeper.4lw.commands.whitelist": "*",
    "znode.container.checkIntervalMs": "1000",
}


def classpath() -> str:
    """What `java -cp` wants."""
    return os.pathsep.join(str(JARS / jar) for jar in CLASSPATH_JARS)


def command(config: Path) -> list[str]:
    """The server on this configuration file; it is quiet but for warnings."""
    properties = [f"-D{name}={value}" for name, value in PROPERTIES.items()]
    # The one key of ours that is a property of the JVM's own there.
    properties += [
        f"-D{line}"
        for line in config.read_text(encoding="utf-8").splitlines()
        if line.startswith("java.security.auth.login.config=")
    ]
    log = config.parent / "log4j.properties"
    return [
        "java",
        f"-Xmx{os.environ.get('JAVA_HEAP', '512m')}",
        f"-Dlog4j.configuration=file:{log}",
        *properties,
        "-cp",
        classpath(),
        MAIN,
        str(config),
    ]


LOG4J = """log4j.rootLogger=INFO, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %-5p %c{1} %m%n
"""


def main() -> None:
    """Become the Java server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--id", type=int, required=True)
    given = parser.parse_args()
    home = given.config.parent
    (home / "data" / "myid").write_text(f"{given.id}\n", encoding="utf-8")
    (home / "log4j.properties").write_text(LOG4J, encoding="utf-8")
    os.execvp("java", command(given.config))  # noqa: S606, S607 - it takes this process's place


if __name__ == "__main__":
    sys.exit(main())
