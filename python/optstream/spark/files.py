"""The folder of one job, on whatever file system Spark writes to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from optstream.errors import ConflictError
from optstream.spark.failures import translated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Target"]


class Target:
    """A folder with ``job.json``, which says whose it is, and the tables of the job.

    Args:
        spark: The session.
        folder: Its path.
    """

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self.folder = folder.rstrip("/")
        self._jvm, self._hadoop = spark._jvm, spark._jsc.hadoopConfiguration()  # noqa: SLF001  (there is no other way)

    @property
    def values(self) -> str:
        """Where the values are."""
        return f"{self.folder}/values"

    @property
    def states(self) -> str:
        """Where the states of an estimate are."""
        return f"{self.folder}/states"

    def check(self, job: str) -> bool:
        """Return whether a job was written here entirely.

        Raises:
            ConflictError: The folder holds something else.
        """
        with translated("looking at the target"):
            system, path = self._at("job.json")
            if not system.exists(path):
                system, folder = self._at("")
                if system.exists(folder) and len(system.listStatus(folder)):
                    raise ConflictError(f"target {self.folder} holds something, but must be a folder of this job alone")
                return False
            stream = system.open(path)
            try:
                content = json.loads(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()
            if content.get("job") != job:
                raise ConflictError(
                    f"target {self.folder} holds another job, of other periods, data or plans, but must be of this one"
                )
            # States are written before values, so that with these there is all.
            system, path = self._at("values/_SUCCESS")
            return bool(system.exists(path))

    def begin(self, description: Mapping[str, Any]) -> None:
        """Say whose folder it is."""
        with translated("writing job.json"):
            system, path = self._at("job.json")
            stream = system.create(path, True)  # noqa: FBT003
            try:
                stream.write(bytearray(json.dumps(description, indent=2).encode()))
            finally:
                stream.close()

    def write(self, rows: DataFrame, name: str) -> None:
        """Write a table, over what an earlier run of the same job may have left."""
        with translated(f"writing {name}"):
            rows.write.mode("overwrite").parquet(f"{self.folder}/{name}")

    def _at(self, name: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self.folder}/{name}" if name else self.folder)
        return path.getFileSystem(self._hadoop), path
