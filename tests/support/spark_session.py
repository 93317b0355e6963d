"""Sessions of Spark on this machine alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A JVM for a test compiles no more than it needs.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def need_java() -> None:
    """Skip where there is no Java; in continuous integration that is a failure."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        if os.environ.get("CI", "") not in {"", "0", "false"}:
            pytest.fail("there is no Java, but continuous integration must have it: tools/java")
        pytest.skip("there is no Java: tools/java installs it where it can")


def session(folder: Path, master: str = "local[2,4]", **more: str) -> Any:
    """Return a session that keeps all its files in a folder."""
    need_java()
    from pyspark.sql import SparkSession  # noqa: PLC0415  (an optional dependency)

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    events = folder / "events"
    events.mkdir(parents=True, exist_ok=True)
    settings = HERE | {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    builder = SparkSession.builder.master(master).appName("optstream")
    for name, value in (settings | {key.replace("_", "."): value for key, value in more.items()}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Start a master and two workers, each on an address of its own; yield the master's."""
    need_java()
    import pyspark  # noqa: PLC0415

    home = Path(pyspark.__file__).parent
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    made: list[subprocess.Popen[bytes]] = []

    def start(address: str, *command: str) -> None:
        more = {"SPARK_LOCAL_IP": address, "SPARK_WORKER_DIR": str(folder / address), "SPARK_DAEMON_MEMORY": "256m"}
        options = {"SPARK_HOME": str(home), "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
        with (folder / f"{address}-{command[0]}.log").open("wb") as log:
            name = f"org.apache.spark.deploy.{command[0]}"
            arguments = [str(home / "bin" / "spark-class"), name, "--host", address, "--webui-port", "0", *command[1:]]
            made.append(subprocess.Popen(arguments, stdout=log, stderr=log, env=os.environ | options | more))

    try:
        start("127.0.0.1", "master.Master", "--port", port)
        for address in ("127.0.0.1", "127.0.0.2"):
            start(address, "worker.Worker", "--cores", "1", "--memory", "1g", f"spark://127.0.0.1:{port}")
        yield f"spark://127.0.0.1:{port}"
    finally:
        for process in reversed(made):
            process.terminate()
        for process in made:
            process.wait(timeout=60)
