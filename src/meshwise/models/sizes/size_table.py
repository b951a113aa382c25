"""Configurations by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

Config = TypeVar("Config")


class SizeTable(Generic[Config]):
    """The sizes of a family of models, from a table."""

    def __init__(
        self,
        family: str,
        config: Callable[..., Config],
        fields: str,
        rows: Mapping[str, Sequence[int | str]],
    ) -> None:
        """Make the configurations.

        Args:
            family: Name of the family in messages.
            config: Makes a configuration from keyword arguments.
            fields: Names of the columns, separated by spaces.
            rows: Values of the columns for each size.
        """
        names = fields.split()
        self._family = family
        self._configs = {
            name: config(**dict(zip(names, row, strict=True))) for name, row in rows.items()
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sizes."""
        return tuple(self._configs)

    def __call__(self, name: str, **changes: object) -> Config:
        """Return the configuration of a size.

        Args:
            name: One of `names`.
            **changes: Fields of the configuration to set otherwise, as `seq_len=64`.

        Returns:
            The configuration.

        Raises:
            ValueError: there is no such size.
        """
        if name not in self._configs:
            raise ValueError(f"no {self._family} size {name!r}; there are {', '.join(self.names)}")
        return replace(self._configs[name], **changes)  # pyright: ignore[reportArgumentType]  # a dataclass
