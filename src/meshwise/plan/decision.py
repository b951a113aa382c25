"""What planning on one mesh decides for a graph: the input of every lowering.

Source: docs/decisions/0003 to 0005.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.graph.layout import Layout
from meshwise.graph.loops import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How one operand reaches an operator.

    The tensor is resharded from the layout of its definition to `via`, once for all uses of the
    same tensor with the same `group` and `via`; from there to `layout`, once for each group and
    layout.  Without a shared copy `via` is the layout of the definition.
    """

    group: int
    via: Layout
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorDecision:
    """Decision for one operator.

    Attributes:
        strategy: Choice per mesh axis (`graph.loops`); empty for an operator with bodies.
        uses: One per operand; what a scan slices enters with dim 0 whole.
        results: Layouts in which the operator leaves its results (what a scan stacks: with dim 0).
        bodies: For `scan`, `cond` and `while`: the decisions for their body graphs.
    """

    strategy: Strategy
    uses: tuple[Use, ...]
    results: tuple[Layout, ...]
    bodies: tuple[GraphDecision, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphDecision:
    """Decision for a graph.

    Attributes:
        inputs: Layout of each graph input at entry.
        operators: One per operator, in program order.
        outputs: How each graph output leaves; `outputs[j].layout` is its final layout, never
            partial at the top level.  For a body: as the operator leaves the result, without the
            stacked dim 0; carries in the layout in which they enter.
        in_host: Positions of inputs that lie in the memory of the host, as does what the step
            returns in their place; ascending, and none for a body.
    """

    inputs: tuple[Layout, ...]
    operators: tuple[OperatorDecision, ...]
    outputs: tuple[Use, ...]
    in_host: tuple[int, ...] = ()
