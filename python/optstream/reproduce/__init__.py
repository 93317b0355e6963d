"""The evaluation of the OptStream paper, run again: every figure and table, in sound calibration and as printed.

    from pathlib import Path
    from optstream.reproduce import reproduce

    made = reproduce(Path("data"), figures=["l1-error"], trials=30)
    Path("l1-error.png").write_bytes(made.files["l1-error.png"])

What is computed here depends on the private data and is not private: it is for experiments on data that may be seen.
"""

from optstream.reproduce.figures import FIGURES
from optstream.reproduce.run import QUICK_TRIALS, TRIALS, reproduce

__all__ = ["FIGURES", "QUICK_TRIALS", "TRIALS", "reproduce"]
