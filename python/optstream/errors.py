"""What can go wrong, as types.

Every error of the library is an :class:`OptStreamError`, and also the built-in exception that a caller would expect.
A message names the parameter, the value and the bound, and no raw data. All are raised before anything is drawn but
two: :class:`SolverError`, and :class:`ConflictError` where another process was faster; nothing leaves then.
"""


class OptStreamError(Exception):
    """The base of every error that the library raises."""


class ParameterError(OptStreamError, ValueError):
    """A parameter lies outside its bound.

    >>> from optstream import noise
    >>> noise.default_grid(-1.0)
    Traceback (most recent call last):
    optstream.errors.ParameterError: sensitivity is -1.0, but must be positive and finite
    """


class ParameterTypeError(OptStreamError, TypeError):
    """A parameter has the wrong type.

    >>> from optstream import noise
    >>> noise.default_grid("one")
    Traceback (most recent call last):
    optstream.errors.ParameterTypeError: sensitivity is of type str, but must be a real number
    """


class DataError(OptStreamError, ValueError):
    """The data is empty, or holds a value that is NaN or infinite.

    >>> import numpy as np
    >>> from optstream import noise
    >>> noise.laplace(np.array([1.0, np.nan]), sensitivity=1, epsilon=1, bounds=(0, 9))
    Traceback (most recent call last):
    optstream.errors.DataError: values[1] is NaN, but must be finite
    """


class EntropyError(OptStreamError, OSError):
    """The operating system gave no entropy; nothing was released."""


class SolverError(OptStreamError, RuntimeError):
    """The post-processing problem was not solved to its tolerance; nothing was released."""


class StreamError(OptStreamError, ValueError):
    """An observation came late, twice, out of order or not at all; the stream is as it was before."""


class LedgerError(OptStreamError, RuntimeError):
    """The ledger cannot be opened, read or written; nothing was released."""


class BudgetError(LedgerError):
    """A release would make some window cost more than the stream's policy allows; nothing was charged."""


class UnknownStreamError(LedgerError, LookupError):
    """The ledger has no stream of this name."""


class ConflictError(LedgerError):
    """A period was released from other data or with another plan, or will not be released; nothing was charged."""
