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
from optstream.errors import (
    DataError,
    EntropyError,
    OptStreamError,
    ParameterError,
    ParameterTypeError,
    SolverError,
)
from optstream.features import Feature
from optstream.guarantee import Guarantee
from optstream.hierarchy import Hierarchy
from optstream.mechanism import OptStream
from optstream.release import Release
from optstream.sparse_vector import above_threshold
from optstream.statement import Stage, Statement
from optstream.steps import EqualSampling, L1Sampling, LaplaceNoise, Linear
from optstream.tree_release import TreeRelease

__version__ = version("optstream")

__all__ = [
    "DataError",
    "EntropyError",
    "EqualSampling",
    "Feature",
    "Guarantee",
    "Hierarchy",
    "L1Sampling",
    "LaplaceNoise",
    "Linear",
    "OptStream",
    "OptStreamError",
    "ParameterError",
    "ParameterTypeError",
    "Release",
    "SolverError",
    "Stage",
    "Statement",
    "TreeRelease",
    "__version__",
    "above_threshold",
    "noise",
]
