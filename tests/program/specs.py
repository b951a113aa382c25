"""Layers by their names alone: a chain with a skip, without JAX."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from meshwise.graph.layout import replicated
from meshwise.program.emit import UpdateSpec
from meshwise.program.names import LayerSpec, Name, ProgramSpec

ROWS, SCALAR = replicated(2), replicated(0)


def chain(stages: Sequence[int], *, skips: bool = True) -> tuple[list[LayerSpec], UpdateSpec]:
    """Layers on given stages; the second one's activation is read by the last one too.

    Gradients are clipped by their global norm; the loss is a value.
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
        entering = [Name("activation", f"a{j}", ROWS) for j in reads(k)]
        readers = [j for j in range(k + 1, count) if k in reads(j)]
        cotangents = [Name("cotangent", (f"a{k}", j), ROWS) for j in readers]
        weight, whole = Name("argument", k, ROWS), Name("whole", 0, ROWS)
        total, kept = Name("sum", 0, ROWS), Name("kept", 0, ROWS)
        index = Name("index", 0, SCALAR)
        own = [Name("rows", 100, ROWS)] if k in (0, count - 1) else []
        leaving = [Name("activation", f"a{k}", ROWS)] if readers else []
        back = [Name("cotangent", f"a{j}", ROWS) for j in reads(k)]
        sent, shared = Name("sent", f"n{k}", SCALAR), Name("shared", "norm", SCALAR)
        loss = [Name("activation", "loss", SCALAR)] if k == count - 1 else []
        layers.append(
            LayerSpec(
                stage=stage,
                before=spec(f"before of layer {k}", [weight], [whole, total]),
                forward=spec(
                    f"forward of layer {k}", [whole, index, *own, *entering], [*leaving, kept]
                ),
                backward=spec(
                    f"backward of layer {k}",
                    [*cotangents, whole, index, *own, kept, total],
                    [*back, total],
                    [total],
                ),
                once=(
                    spec(f"values of layer {k}", [total], loss),
                    spec(f"norm of layer {k}", [total], [sent]),
                    spec(
                        f"apply of layer {k}",
                        [weight, total, shared],
                        [Name("result", k, ROWS)],
                        [weight],
                    ),
                ),
            )
        )
    norms = [Name("sent", f"n{k}", SCALAR) for k in range(count)]
    norm = Name("shared", "norm", SCALAR)
    update = UpdateSpec(
        joins=(spec("join 0", norms, [norm]),),
        common=spec("common", [Name("value", 0, SCALAR)], [Name("result", count, SCALAR)]),
        values=MappingProxyType({"loss": (0,)}),
        adders={},
        passed=((count + 1, 100),),
    )
    return layers, update
