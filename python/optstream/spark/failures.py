"""What fails inside a job of Spark, as the typed errors of the library."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from optstream.errors import ConflictError, DataError, LedgerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column

__all__ = ["refusal", "refused", "translated"]

KINDS = {"data": DataError, "conflict": ConflictError}
SAID = re.compile(r"optstream refuses \((data|conflict)\): ([^\n]*?) \(end of refusal\)")


def refusal(said: str, kind: str = "data") -> str:
    """Return a message that is found again in whatever Spark wraps around it."""
    return f"optstream refuses ({kind}): {said} (end of refusal)"


def refused(said: str) -> Column:
    """Return a column whose evaluation fails the job."""
    return F.raise_error(F.lit(refusal(said)))


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise refusals of a job as what they are, and other failures without what they quote, which may be data.

    Raises:
        DataError: The data cannot be used.
        ConflictError: The data is not what was charged.
        LedgerError: The job failed for another reason, such as lost machines.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        found = SAID.search(str(error))
        if found:
            raise KINDS[found[1]](found[2]) from None
        raise LedgerError(f"{what} failed in Spark with {type(error).__name__}: see the log of the job") from None
