"""Files that appear whole and together, or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from optstream.cli.exits import OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

__all__ = ["Output", "Outputs"]


@dataclass(frozen=True)
class Output:
    """A file on its way: the data goes to a temporary file beside it, or later to what is no file, as a pipe."""

    path: Path
    temporary: Path | None
    file: IO[bytes]
    waiting: bytearray = field(default_factory=bytearray)
    """What goes to a pipe after all files are in their places: it cannot be taken back."""

    def write(self, data: bytes) -> None:
        """Write the data; the file itself changes when all outputs are complete."""
        if self.temporary is None:
            self.waiting.extend(data)
            return
        with _writing(self.path):
            self.file.write(data)
            self.file.flush()
            os.fsync(self.file.fileno())


class Outputs:
    """The files that a command writes: complete on disk before any of them is put in its place, in their order.

    Args:
        inputs: What the command reads; none of it may be overwritten. Names that are no paths do no harm.
    """

    def __init__(self, *inputs: str | Path | None) -> None:
        self._taken = [os.path.realpath(path) for path in inputs if path is not None]
        self._outputs: list[Output] = []
        self.placed: list[Path] = []
        """What has been put in its place."""

    def prepare(self, path: Path) -> Output:
        """Open an output, before anything is spent: a folder that does not take files is found now."""
        target = Path(os.path.realpath(path))
        for taken in self._taken:
            if taken == str(target) or (target.exists() and Path(taken).exists() and target.samefile(taken)):
                raise UsageError(
                    f"{path} is read or written by the same command, but outputs must be files of their own"
                )
        self._taken.append(str(target))
        with _writing(path):
            if target.exists() and not target.is_file():
                output = Output(path, None, target.open("wb"))
            else:
                temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
                output = Output(target, temporary, temporary.open("xb"))
        self._outputs.append(output)
        return output

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            files = [output for output in self._outputs if output.temporary is not None]
            for output in files:
                # What could not be written is tried once more here, and fails once more.
                with _writing(output.path) if kind is None else suppress(OSError):
                    output.file.close()
            for output in files if kind is None else []:
                self._place(output)
            for output in self._outputs:
                if output.temporary is None:
                    with _writing(output.path) if kind is None else suppress(OSError), output.file:
                        output.file.write(output.waiting if kind is None else b"")
        finally:
            for output in self._outputs:
                if output.temporary is not None:
                    with suppress(OSError):
                        output.temporary.unlink(missing_ok=True)

    def _place(self, output: Output) -> None:
        with _writing(output.path):
            if output.temporary is not None:
                if output.path.exists():
                    shutil.copymode(output.path, output.temporary)
                output.temporary.replace(output.path)
            _sync_folder(output.path.parent)
        self.placed.append(output.path)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None


def _sync_folder(folder: Path) -> None:
    """Make the new name durable, on systems where a folder can be opened."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
