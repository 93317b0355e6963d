"""Release time series under differential privacy.

The noise is exact: integers on a public grid, drawn without floating-point arithmetic from a generator that is keyed
afresh by the operating system for every call. See :mod:`optstream.noise`.
"""

from importlib.metadata import version

from optstream import noise
from optstream.errors import (
    DataError,
    EntropyError,
    NoiseError,
    OptStreamError,
    ParameterError,
    ParameterTypeError,
)

__version__ = version("optstream")

__all__ = [
    "DataError",
    "EntropyError",
    "NoiseError",
    "OptStreamError",
    "ParameterError",
    "ParameterTypeError",
    "__version__",
    "noise",
]
