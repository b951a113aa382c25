"""What a stage does with what other stages send: put together the copies that its layout asks for.

Each byte of an activation, and of the cotangent that comes back, crosses once; devices that hold
the same then gather it among themselves and do nothing else meanwhile.  That is work of the stage
which receives, and depends on the state of its cut alone.

Counted is the activation that gives a cut its state; others that cross are left out.

Source: Alpa section 6 (local all-gather).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwise.cluster.mesh import LogicalMesh
from meshwise.inter.layer_cost.boundary import Boundary, primary
from meshwise.pieces.piece import Crossing
from meshwise.resharding.between import gather_s


def gathers_s(
    boundary: Boundary, crossings: tuple[Crossing, ...], mesh: LogicalMesh
) -> NDArray[np.float64]:
    """Seconds that one micro-batch takes in each state of a cut, in one direction.

    Args:
        boundary: The side of the cut that receives.
        crossings: What crosses there.
        mesh: Of the layer on that side.
    """
    main = primary(crossings)
    if main is None:
        return np.zeros(len(boundary.layouts))
    return np.array([gather_s(main.num_bytes, layout, mesh) for layout in boundary.layouts])
