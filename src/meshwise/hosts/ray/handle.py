"""What a driver holds of a value that lives on the hosts."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

import numpy as np

from meshwise.errors import ClusterError


class Home(Protocol):
    """Where values live, by their numbers."""

    name: str

    def drop(self, number: int) -> None:
        """Say that nobody holds a value any more."""

    def wait(self, number: int) -> None:
        """Wait until an array is computed."""

    def fetched(self, number: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return the values of an array."""
        ...


class Handle:
    """A value that lives on the hosts as long as the driver holds its handle.

    Attributes:
        hosts: Where it lives.
        number: Its number there.
    """

    def __init__(self, hosts: Home, number: int) -> None:
        self.hosts = hosts
        self.number = number

    def __del__(self) -> None:
        self.hosts.drop(self.number)

    def __copy__(self) -> Handle:
        return self

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise ClusterError(
            f"{self!r} is a handle, and a step that gets it may overwrite what it stands for; copy "
            "the array on the hosts, as `cluster.run(lambda x: jax.tree.map(jnp.copy, x), state)`"
        )

    def __reduce__(self) -> NoReturn:
        raise ClusterError(
            f"{self!r} belongs to the driver and cannot be sent inside of something else; pass it "
            "as an argument, not in the closure of a function"
        )


class ArrayHandle(Handle):
    """An array on the hosts; its values come to the driver when they are read.

    `np.asarray(handle)`, `float(handle)`, `jax.device_get(handles)` read them, once.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
    """

    def __init__(self, hosts: Home, number: int, shape: tuple[int, ...], dtype: Any) -> None:
        super().__init__(hosts, number)
        self.shape = shape
        self.dtype = dtype
        self._value: np.ndarray | None = None

    @property
    def ndim(self) -> int:
        """The number of its dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of its elements."""
        return int(np.prod(self.shape, dtype=int))

    def block_until_ready(self) -> ArrayHandle:
        """Wait until the hosts have computed the array."""
        self.hosts.wait(self.number)
        return self

    def item(self) -> Any:
        """Return the one element as a number of Python."""
        return self.__array__().item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self._value is None:
            self._value = self.hosts.fetched(self.number, self.shape, self.dtype)
        return np.array(self._value, dtype, copy=copy)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __format__(self, text: str) -> str:
        return format(self.item(), text) if self.ndim == 0 else format(repr(self), text)

    def __repr__(self) -> str:
        return f"ArrayHandle({self.dtype}{list(self.shape)} on {self.hosts.name})"
