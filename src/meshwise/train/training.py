"""What a run trains, whoever wrote it: the loop knows nothing else of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax

from meshwise.jax_compat.jaxprs import PyTree
from meshwise.train.corpus import Corpus
from meshwise.train.parallel import TrainStep


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Training:
    """A step for one device, its first state, and the batch of each step.

    Attributes:
        name: What is trained, for display.
        about: What there is to say of its state and its data, for display.
        amount: What one step learns from, for display.
        step: `(state, batch) -> (state, result)`.
        create: Makes the first state from the seed.
        seed: The argument of `create`: a key, or the state itself.
        batch: Returns the whole batch of a step by its number, counted from 0.
        loss: Returns the loss in the result of a step, a scalar.
        shapes: Shapes of the state and of a batch.
        num_units: How many units one step learns from.
        unit: Name of these units in the rate that is shown, as "tokens".
        identity: What must not change when the run is resumed.
        corpus: The text of the built-in models, of which a part is held out; None for a step of
            the user's own.
    """

    name: str
    about: str
    amount: str
    step: TrainStep
    create: Callable[[PyTree], PyTree]
    seed: PyTree
    batch: Callable[[int], PyTree]
    loss: Callable[[PyTree], jax.Array]
    shapes: tuple[PyTree, PyTree]
    num_units: int
    unit: str
    identity: dict[str, object]
    corpus: Corpus | None = None

    def rate_text(self, step_s: float) -> str:
        """Return how many units are learned from in a second.

        Args:
            step_s: Seconds of a step; 0 if none was timed.
        """
        return f"{self.num_units / step_s if step_s else 0.0:,.0f} {self.unit}/s"
