"""Types of the arrays that kernels of `meshwise.kernels` take.

An element of an array is `Any` to the type checker, so that numbers of 64 bits and those of Python
may be mixed, as Numba does.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]
# One number that another thread may set.
Flag: TypeAlias = npt.NDArray[np.int8]
# Numbers that need little room: positions in logs, labels, and choices of labels.
Ints32: TypeAlias = npt.NDArray[np.int32]
Ints16: TypeAlias = npt.NDArray[np.int16]
