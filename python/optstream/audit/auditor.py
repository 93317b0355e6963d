"""The audit: for every pair of neighbours, choose an event on some runs and measure it on others."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from tqdm.auto import tqdm

from optstream.audit.bounds import choose, loss
from optstream.audit.report import Attack, Audit
from optstream.audit.statistics import Score, fitted
from optstream.audit.subjects import Likelihood, Subject, subject_of
from optstream.errors import ParameterError, ParameterTypeError
from optstream.stream.open_period import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from optstream.audit.bounds import Event
    from optstream.audit.pairs import Pair
    from optstream.mechanism.mechanism import Mechanism

    Array = NDArray[np.float64]

__all__ = ["audit"]

FIT, CHOOSE = 20_000, 250_000
"""The most runs that fit statistics, and that choose the event, on each input of a pair."""
CHUNK = 4_000_000
"""About how many numbers of output are held at a time while an event is measured."""
CAUTION = 1e-4
"""The error with which events are compared when one is chosen."""
FEWEST = 1000


def audit(
    mechanism: Mechanism | Callable[[Array], Array],
    *,
    trials: int = 100_000,
    confidence: float = 0.999,
    neighbours: Sequence[Pair] | None = None,
    claimed: float | Fraction | None = None,
    delta: float | Fraction | None = None,
    likelihood: Likelihood | None = None,
    processes: int = 1,
    name: str | None = None,
) -> Audit:
    """Attack a mechanism and return the largest epsilon that the evidence proves, beside the claimed one.

    Every pair of neighbours is run ``trials`` times on each of its two inputs. Some of the runs choose a statistic and
    a threshold, the others bound the probabilities of reaching it on either input (Clopper-Pearson). One event is
    measured for each pair, and the pairs share the allowed error, so the whole audit accuses a mechanism that keeps its
    promise with probability at most ``1 - confidence``.

    Args:
        mechanism: An :class:`OptStream` or another mechanism of the library, or a function that maps a 2-D array with
            one input per row to an array with one output per row, with independent randomness in each row.
        trials: Runs on each input of each pair.
        confidence: The probability that nothing proven is false.
        neighbours: The pairs to try. By default :func:`pairs_of` the mechanism; a function needs them.
        claimed: The epsilon that is promised. By default that of the mechanism's statement; a function needs it.
        delta: The delta with which it is promised. By default that of the mechanism's guarantee; 0 for a function.
        likelihood: The log-density of a function's outputs given the input, where it is known: the best statistic.
        processes: Work on so many pairs at a time, in forked processes. The randomness of a function must survive that.
        name: What the report calls the mechanism.

    Returns:
        The verdict, with what each pair proved.

    Raises:
        ParameterError: A parameter lies outside its bound, or a pair are no neighbours.

    Example:
        >>> import optstream as ops
        >>> mechanism = ops.OptStream(ops.Guarantee(epsilon=1, w=2), sample=ops.EqualSampling(k=2), bounds=(0, 100))
        >>> found = audit(mechanism, trials=20_000)
        >>> found.verdict, found.claimed, 0.5 < found.proven <= 1
        ('consistent', 1.0, True)
    """
    if isinstance(trials, bool) or not isinstance(trials, int):
        raise ParameterTypeError(f"trials is of type {type(trials).__name__}, but must be an int")
    if trials < FEWEST:
        raise ParameterError(f"trials is {trials}, but must be at least {FEWEST}")
    if not 0 < finite("confidence", confidence) < 1:
        raise ParameterError(f"confidence is {confidence}, but must lie between 0 and 1")
    subject = subject_of(mechanism, claimed=claimed, delta=delta, neighbours=neighbours, likelihood=likelihood)
    work = _Work(subject, trials, (1 - confidence) / len(subject.pairs))
    total = 2 * trials * len(subject.pairs)
    with tqdm(total=total, desc="auditing", unit="run", unit_scale=True, disable=None, leave=False) as progress:
        attacks = tuple(_attacks(work, processes, progress.update))
    shown = name or str(getattr(mechanism, "__name__", type(mechanism).__name__))
    return Audit(shown, subject.claimed, attacks, confidence, subject.delta)


@dataclass(frozen=True)
class _Work:
    subject: Subject
    trials: int
    error: float
    """The probability with which one pair may prove too much."""

    def attack(self, index: int, done: Callable[[int], object]) -> Attack:
        """Choose an event for a pair and measure it; say as it goes how many runs are done."""
        pair = self.subject.pairs[index]
        fit, chosen = min(self.trials // 8, FIT), min(self.trials // 4, CHOOSE)
        name, score, event = self._best(pair, fit, chosen)
        done(2 * (fit + chosen))
        n = self.trials - fit - chosen
        likely = unlikely = 0
        for size in self._chunks(n, pair):
            first, second = (score(self.subject.run(x, size)) for x in (pair.x, pair.other))
            counts = event.counts(first, second)
            likely, unlikely = likely + counts[0], unlikely + counts[1]
            done(2 * size)
        delta = self.subject.delta
        proven = float(loss(likely, unlikely, n, self.error, delta))
        with np.errstate(divide="ignore", invalid="ignore"):
            more = np.maximum(likely - delta * n, 0.0)
            estimate = float(np.nan_to_num(np.log(more) - np.log(unlikely), nan=0.0, posinf=np.inf))
        words = f"{name} {event.tail} {event.cut:.4g}"
        return Attack(pair.name, words, max(proven, 0.0), estimate, self.trials)

    def _best(self, pair: Pair, fit: int, chosen: int) -> tuple[str, Score, Event]:
        """Return the statistic and the event that promise most, from runs that are used for nothing else."""
        samples = [self.subject.run(x, fit) for x in (pair.x, pair.other)]
        scores = self.subject.scores(pair) | fitted(*samples)
        scores |= _sums(scores, samples)
        if not scores:
            # Nothing varies, and nothing can be told.
            scores = {"constant": lambda outputs: outputs[:, 0] * 0.0}
        first, second = (self.subject.run(x, chosen) for x in (pair.x, pair.other))
        # Thousands of events are compared, so one that is not clearly better wins by luck and proves nothing later.
        error = min(self.error, CAUTION)
        found = {name: choose(score(first), score(second), error, self.subject.delta) for name, score in scores.items()}
        best = max(found, key=lambda name: found[name][0])
        return best, scores[best], found[best][1]

    def _chunks(self, n: int, pair: Pair) -> Iterator[int]:
        size = max(1000, CHUNK // (4 * pair.x.size))
        return (min(size, n - done) for done in range(0, n, size))


def _sums(scores: dict[str, Score], samples: Sequence[Array]) -> dict[str, Score]:
    """Return what the answers of a sampler and the noise on what it chose say together."""
    patterns, noise = scores.get("pattern of answers"), scores.get("likelihood ratio of samples")
    if patterns is None or noise is None:
        return {}
    # The noise score is in the units of the data, so its weight against the answers is tried out.
    spread = np.std(np.concatenate([noise(sample) for sample in samples]))
    if not spread:
        return {}

    def together(weight: float, outputs: Array) -> Array:
        return np.asarray(patterns(outputs) + noise(outputs) * (weight / spread))

    return {f"answers and {weight:g} times noise": partial(together, weight) for weight in (0.25, 0.5, 1.0, 2.0)}


_inherited: list[_Work] = []


def _attacks(work: _Work, processes: int, done: Callable[[int], object]) -> Iterator[Attack]:
    indices = range(len(work.subject.pairs))
    if processes <= 1:
        yield from (work.attack(index, done) for index in indices)
        return
    # Forked processes inherit the work, which may hold functions that cannot be sent.
    context = multiprocessing.get_context("fork")
    with context.Pool(processes, initializer=_inherited.append, initargs=(work,)) as pool:
        for attack in pool.imap(_attack, indices):
            done(2 * work.trials)
            yield attack


def _attack(index: int) -> Attack:
    return _inherited[-1].attack(index, lambda _: None)
