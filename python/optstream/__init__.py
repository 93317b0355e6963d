"""Release time series under differential privacy.

    import optstream as ops

    mechanism = ops.OptStream(
        ops.Guarantee(epsilon=1.0, w=48, alpha=10.0), sample=ops.EqualSampling(k=10), bounds=(0, 20_000)
    )
    print(mechanism.statement)
    release = mechanism.release(loads)

The noise is exact: integers on a public grid, drawn without floating-point arithmetic from a generator that is keyed
afresh by the operating system for every call. See :mod:`optstream.noise`.
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optstream import noise
    from optstream.data.events import aggregate
    from optstream.errors import (
        BudgetError,
        ConflictError,
        DataError,
        EntropyError,
        LedgerError,
        OptStreamError,
        ParameterError,
        ParameterTypeError,
        SolverError,
        StreamError,
        UnknownStreamError,
    )
    from optstream.estimate import Estimate
    from optstream.keys import CuratorKey, create_key, data_digest, read_key, rotate_key
    from optstream.ledger import Ledger, restore_ledger
    from optstream.mechanism.candidates import Candidate
    from optstream.mechanism.members import PoolPlan, read_pool_plan
    from optstream.mechanism.optstream import OptStream
    from optstream.mechanism.plan import read_plan, write_plan
    from optstream.mechanism.release import Release
    from optstream.mechanism.step_release import StepRelease
    from optstream.mechanism.tree_release import TreeRelease
    from optstream.mechanism.tuning import Tuning, tune
    from optstream.pipeline.features import Feature
    from optstream.pipeline.hierarchy import Hierarchy
    from optstream.pipeline.panel import Panel
    from optstream.pipeline.perturbation import CubeNoise, GaussianNoise, LaplaceNoise
    from optstream.pipeline.reconstruction import Linear
    from optstream.pipeline.sampling import BucketSampling, EqualSampling, L1Sampling
    from optstream.pipeline.sparse_vector import above_threshold
    from optstream.privacy.guarantee import Guarantee
    from optstream.privacy.statement import Stage, Statement
    from optstream.stream.asynchronous import AsyncStream
    from optstream.stream.keyed import release_many
    from optstream.stream.stream import Stream

    __version__: str

# What the library says goes to this logger, and nowhere unless the program says where.
logging.getLogger("optstream").addHandler(logging.NullHandler())

# Modules are loaded when a name of theirs is first asked for: whoever needs a stream does not wait for the solver.
_HOMES = {
    "AsyncStream": "optstream.stream.asynchronous",
    "BucketSampling": "optstream.pipeline.sampling",
    "BudgetError": "optstream.errors",
    "Candidate": "optstream.mechanism.candidates",
    "ConflictError": "optstream.errors",
    "CubeNoise": "optstream.pipeline.perturbation",
    "CuratorKey": "optstream.keys",
    "DataError": "optstream.errors",
    "EntropyError": "optstream.errors",
    "EqualSampling": "optstream.pipeline.sampling",
    "Estimate": "optstream.estimate",
    "Feature": "optstream.pipeline.features",
    "GaussianNoise": "optstream.pipeline.perturbation",
    "Guarantee": "optstream.privacy.guarantee",
    "Hierarchy": "optstream.pipeline.hierarchy",
    "L1Sampling": "optstream.pipeline.sampling",
    "LaplaceNoise": "optstream.pipeline.perturbation",
    "Ledger": "optstream.ledger",
    "LedgerError": "optstream.errors",
    "Linear": "optstream.pipeline.reconstruction",
    "OptStream": "optstream.mechanism.optstream",
    "OptStreamError": "optstream.errors",
    "Panel": "optstream.pipeline.panel",
    "ParameterError": "optstream.errors",
    "ParameterTypeError": "optstream.errors",
    "PoolPlan": "optstream.mechanism.members",
    "Release": "optstream.mechanism.release",
    "SolverError": "optstream.errors",
    "Stage": "optstream.privacy.statement",
    "Statement": "optstream.privacy.statement",
    "StepRelease": "optstream.mechanism.step_release",
    "Stream": "optstream.stream.stream",
    "StreamError": "optstream.errors",
    "TreeRelease": "optstream.mechanism.tree_release",
    "Tuning": "optstream.mechanism.tuning",
    "UnknownStreamError": "optstream.errors",
    "above_threshold": "optstream.pipeline.sparse_vector",
    "aggregate": "optstream.data.events",
    "create_key": "optstream.keys",
    "data_digest": "optstream.keys",
    "read_key": "optstream.keys",
    "restore_ledger": "optstream.ledger",
    "rotate_key": "optstream.keys",
    "read_plan": "optstream.mechanism.plan",
    "read_pool_plan": "optstream.mechanism.members",
    "release_many": "optstream.stream.keyed",
    "tune": "optstream.mechanism.tuning",
    "write_plan": "optstream.mechanism.plan",
}

__all__ = [
    "AsyncStream",
    "BucketSampling",
    "BudgetError",
    "Candidate",
    "ConflictError",
    "CubeNoise",
    "CuratorKey",
    "DataError",
    "EntropyError",
    "EqualSampling",
    "Estimate",
    "Feature",
    "GaussianNoise",
    "Guarantee",
    "Hierarchy",
    "L1Sampling",
    "LaplaceNoise",
    "Ledger",
    "LedgerError",
    "Linear",
    "OptStream",
    "OptStreamError",
    "Panel",
    "ParameterError",
    "ParameterTypeError",
    "PoolPlan",
    "Release",
    "SolverError",
    "Stage",
    "Statement",
    "StepRelease",
    "Stream",
    "StreamError",
    "TreeRelease",
    "Tuning",
    "UnknownStreamError",
    "__version__",
    "above_threshold",
    "aggregate",
    "create_key",
    "data_digest",
    "noise",
    "read_key",
    "read_plan",
    "read_pool_plan",
    "release_many",
    "restore_ledger",
    "rotate_key",
    "tune",
    "write_plan",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415  (reads files)

        return version("optstream")
    if name == "noise":
        return importlib.import_module("optstream.noise")
    if name not in _HOMES:
        raise AttributeError(f"module 'optstream' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
