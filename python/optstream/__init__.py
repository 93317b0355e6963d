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

from importlib.metadata import version

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
from optstream.keys import CuratorKey, create_key, read_key
from optstream.ledger import Ledger
from optstream.mechanism.optstream import OptStream
from optstream.mechanism.plan import read_plan
from optstream.mechanism.release import Release
from optstream.mechanism.tree_release import TreeRelease
from optstream.mechanism.tuning import Candidate, Tuning, tune
from optstream.pipeline.features import Feature
from optstream.pipeline.hierarchy import Hierarchy
from optstream.pipeline.perturbation import CubeNoise, GaussianNoise, LaplaceNoise
from optstream.pipeline.reconstruction import Linear
from optstream.pipeline.sampling import BucketSampling, EqualSampling, L1Sampling
from optstream.pipeline.sparse_vector import above_threshold
from optstream.privacy.guarantee import Guarantee
from optstream.privacy.statement import Stage, Statement
from optstream.stream.stream import Stream

__version__ = version("optstream")

__all__ = [
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
    "ParameterError",
    "ParameterTypeError",
    "Release",
    "SolverError",
    "Stage",
    "Statement",
    "Stream",
    "StreamError",
    "TreeRelease",
    "Tuning",
    "UnknownStreamError",
    "__version__",
    "above_threshold",
    "aggregate",
    "create_key",
    "noise",
    "read_key",
    "read_plan",
    "tune",
]
