"""No generator state survives a call: forks, threads and processes never share noise. Keyed noise repeats."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from optstream import _core, noise

Keyed = Callable[..., NDArray[np.float64]]
SECRET = bytes(range(32))
LARGE = 1 << 17


def draw(n: int = 48) -> bytes:
    laplace = noise.laplace(np.zeros(n), sensitivity=1.0, epsilon=0.1, bounds=(0.0, 1.0))
    normal = noise.gaussian(np.zeros(n), sensitivity=1.0, epsilon=0.1, delta=1e-6, bounds=(0.0, 1.0))
    return laplace.tobytes() + normal.tobytes()


def test_a_fork_draws_other_noise_than_its_parent() -> None:
    # A large batch first, so that threads have been used before the fork.
    draw(LARGE)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(draw())
        os._exit(0)
    os.close(writer)
    parents = draw()
    with os.fdopen(reader, "rb") as pipe:
        childs = pipe.read()
    os.waitpid(child, 0)
    assert len(childs) == len(parents)
    half = len(parents) // 2
    assert childs[:half] != parents[:half]
    assert childs[half:] != parents[half:]


def test_forked_workers_draw_unrelated_noise_in_small_and_large_batches() -> None:
    context = multiprocessing.get_context("fork")
    draw(LARGE)
    with context.Pool(3) as pool:
        small = pool.map(draw, [48] * 30)
        large = pool.map(draw, [LARGE] * 3)
    assert len({*small, draw()}) == 31
    assert len({*large, draw(LARGE)}) == 4


def test_threads_draw_unrelated_noise() -> None:
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(draw())) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results)) == 30


@pytest.mark.parametrize("keyed", [_core.laplace, _core.cube, _core.gaussian])
class TestKeyed:
    values = np.linspace(0, 9, 48)

    def noise(self, keyed: Keyed, values: NDArray[np.float64], secret: bytes, *context: bytes) -> NDArray[np.float64]:
        return keyed(values, 1.0, 0.1, (0.0, 10.0), None, (_core.CuratorKey(secret), context)) - values

    def test_the_same_context_and_data_give_the_same_noise(self, keyed: Keyed) -> None:
        first = self.noise(keyed, self.values, SECRET, b"stream", b"7")
        np.testing.assert_array_equal(first, self.noise(keyed, self.values.copy(), SECRET, b"stream", b"7"))

    def test_any_changed_byte_gives_unrelated_noise(self, keyed: Keyed) -> None:
        first = self.noise(keyed, self.values, SECRET, b"stream", b"7")
        moved = self.values.copy()
        moved[17] += 1 / 1024
        others = [
            self.noise(keyed, self.values, SECRET, b"stream", b"8"),
            self.noise(keyed, self.values, SECRET, b"strean", b"7"),
            self.noise(keyed, self.values, SECRET, b"stream7"),
            self.noise(keyed, self.values, bytes(32), b"stream", b"7"),
            self.noise(keyed, moved, SECRET, b"stream", b"7"),
        ]
        for other in others:
            # Independent noise at scale 10 / (1/1024) agrees to a grid step about once in 10,000 values.
            assert np.sum(np.abs(first - other) < 1 / 1024) <= 2
            assert abs(np.corrcoef(first, other)[0, 1]) < 0.9

    def test_the_number_of_threads_does_not_matter(self, keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
        values = np.zeros(LARGE).reshape(-1, 64) if keyed is _core.cube else np.zeros(LARGE)
        both = self.noise(keyed, values, SECRET, b"threads")
        monkeypatch.setenv("OPTSTREAM_MAX_THREADS", "1")
        np.testing.assert_array_equal(both, self.noise(keyed, values, SECRET, b"threads"))


def test_a_curators_key_cannot_be_read_back() -> None:
    key = _core.CuratorKey(SECRET)
    assert repr(key) == str(key) == "CuratorKey(<secret>)"
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(key)
    with pytest.raises(TypeError, match="secret is 31 bytes long"):
        _core.CuratorKey(SECRET[1:])
