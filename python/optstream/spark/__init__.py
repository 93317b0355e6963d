"""Aggregation and release where the data is: in Spark. ``pip install 'optstream[spark]'``, PySpark 4 and Java 17.

A leaf: nothing else of the library imports it.
"""

from __future__ import annotations

from optstream.spark.events import aggregate
from optstream.spark.release import Job, release
from optstream.spark.streaming import closed_steps, foreach_batch

__all__ = ["Job", "aggregate", "closed_steps", "foreach_batch", "release"]
