"""Sessions of Spark on this machine alone."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

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
