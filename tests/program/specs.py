"""Layers by their names alone: a chain with a skip, without JAX."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from meshwise.graph.layout import replicated
from meshwise.program.emit import UpdateSpec
from meshwise.program.layer_parts import LayerParts
from meshwise.program.names import (
    Activation,
    Cotangent,
    CotangentTerm,
    LayerSpec,
    Local,
    LossValue,
    MicrobatchIndex,
    Name,
    ProgramSpec,
    Rows,
    SentValue,
    SharedValue,
    StepArgument,
    StepResult,
)

ROWS, SCALAR = replicated(2), replicated(0)


def chain(
    stages: Sequence[int], *, skips: bool = True, splits: bool = False
) -> tuple[list[LayerSpec], UpdateSpec]:
    """Layers on given stages; the second one's activation is read by the last one too.

    Gradients are clipped by their global norm; the loss is a value.

    Args:
        stages: For each layer its stage.
        skips: Whether there is an activation that goes over layers.
        splits: Whether gradients of weights are programs of their own; the first layer has no
            gradient of activations, and the last one none of weights.
    """
    count = len(stages)
    numbers = iter(range(1000))

    def spec(
        label: str, inputs: Sequence[Name], outputs: Sequence[Name], donated: Sequence[Name] = ()
    ) -> ProgramSpec:
        return ProgramSpec(
            number=next(numbers),
            label=label,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            places=tuple(range(len(outputs))),
            donated=tuple(n for n, name in enumerate(inputs) if name in donated),
        )

    def reads(k: int) -> list[int]:
        found = [k - 1] if k else []
        return [*found, 1] if skips and k == count - 1 and count > 3 else found

    layers: list[LayerSpec] = []
    for k, stage in enumerate(stages):
        entering = [Name(Activation(f"a{j}"), ROWS) for j in reads(k)]
        readers = [j for j in range(k + 1, count) if k in reads(j)]
        cotangents = [Name(CotangentTerm(Activation(f"a{k}"), j), ROWS) for j in readers]
        weight, whole = Name(StepArgument(k), ROWS), Name(Local("whole", 0), ROWS)
        total, kept = Name(Local("sum", 0), ROWS), Name(Local("kept", 0), ROWS)
        index = Name(MicrobatchIndex(), SCALAR)
        own = [Name(Rows(100), ROWS)] if k in (0, count - 1) else []
        leaving = [Name(Activation(f"a{k}"), ROWS)] if readers else []
        back = [Name(Cotangent(Activation(f"a{j}")), ROWS) for j in reads(k)]
        sent, shared = Name(SentValue(f"n{k}"), SCALAR), Name(SharedValue("norm"), SCALAR)
        loss = [Name(Activation("loss"), SCALAR)] if k == count - 1 else []
        number = f"of layer {k}"
        around = [whole, index, *own]
        if not splits:
            backward = spec(
                f"backward {number}",
                [*cotangents, *around, kept, total],
                [*back, total],
                [total],
            )
            weights = None
        elif k == count - 1:
            backward = spec(f"backward {number}", [*around, kept, total], [*back, total], [total])
            weights = None
        else:
            late = [Name(Local("delayed", 7), ROWS)] if back else []
            backward = spec(f"backward {number}", [*cotangents, *around, kept], [*back, *late])
            weights = spec(
                f"weights {number}",
                [*(late or cotangents), *own, kept, total],
                [total],
                [total],
            )
        layers.append(
            LayerSpec(
                stage=stage,
                parts=LayerParts(
                    before=spec(f"before of layer {k}", [weight], [whole, total]),
                    forward=spec(
                        f"forward of layer {k}", [whole, index, *own, *entering], [*leaving, kept]
                    ),
                    backward=backward,
                    weights=weights,
                    once=(
                        spec(f"values of layer {k}", [total], loss),
                        spec(f"norm of layer {k}", [total], [sent]),
                        spec(
                            f"apply of layer {k}",
                            [weight, total, shared],
                            [Name(StepResult(k), ROWS)],
                            [weight],
                        ),
                    ),
                ),
            )
        )
    norms = [Name(SentValue(f"n{k}"), SCALAR) for k in range(count)]
    norm = Name(SharedValue("norm"), SCALAR)
    update = UpdateSpec(
        joins=(spec("join 0", norms, [norm]),),
        common=spec("common", [Name(LossValue(0), SCALAR)], [Name(StepResult(count), SCALAR)]),
        values=MappingProxyType({Activation("loss"): (0,)}),
        adders={},
        passed=((count + 1, 100),),
    )
    return layers, update
