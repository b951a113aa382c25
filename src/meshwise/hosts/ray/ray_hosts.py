"""The hosts of a job as the driver sees them: actors of Ray, all of which do the same."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import numpy as np

from meshwise.errors import ClusterError, LaunchError
from meshwise.hosts.member import JobMember
from meshwise.hosts.ray.handle import ArrayHandle, Handle
from meshwise.hosts.ray.host import (
    Argument,
    ArrayType,
    Host,
    HostCall,
    Staying,
    Stored,
    Unsent,
)
from meshwise.hosts.ray.host_request import HostRequest, ray_module
from meshwise.hosts.ray.trees import Skeleton, Trees
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.units import counted

# When one host has failed, the others may be about to, or wait for it without end.
_GRACE_S = 10.0
# Such a call is sent to each host; a larger one once to Ray's store of objects, which takes longer
# for small ones (two hosts: 4 ms more a step on a loaded machine).
_SMALL_BYTES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """What is to be ended.

    Attributes:
        actors: The processes.
        groups: What Ray reserved for them.
        has_ray: Whether this driver was connected to Ray for them.
    """

    actors: list[Any]
    groups: list[Any]
    has_ray: bool


class RayHosts:
    """The processes of a job on hosts that Ray gives, and the values that live there."""

    def __init__(self, request: HostRequest, *, patience_s: float) -> None:
        """Start the processes, and join them.

        Args:
            request: The hosts.
            patience_s: How long Ray may take to find room for them.

        Raises:
            LaunchError: Ray is not installed, or has no room.
        """
        self._ray = ray_module()
        has_ray = not self._ray.is_initialized()
        if has_ray:
            self._ray.init(include_dashboard=False)
        self.name = f"{counted(request.num_hosts, 'host')} of Ray"
        self._end_text = ""
        self._lock = threading.RLock()
        self._trees = Trees()
        self._next_number = 0
        self._dropped: deque[int] = deque()
        started = _Started(actors=[], groups=[], has_ray=has_ray)
        self._actors = started.actors
        self._end = weakref.finalize(self, _end, started)
        try:
            group = self._ray.util.placement_group(
                [request.resources] * request.num_hosts, strategy=request.strategy
            )
            started.groups.append(group)
            self._start(request, group, patience_s)
        except BaseException:
            self.shutdown()
            raise

    def _start(self, request: HostRequest, group: Any, patience_s: float) -> None:
        try:
            self._ray.get(group.ready(), timeout=patience_s)
        except self._ray.exceptions.GetTimeoutError as error:
            raise LaunchError(
                f"Ray has found no room for {counted(request.num_hosts, 'host')} with "
                f"{request.resources} each ({request.strategy}) in {patience_s:g} s; free in its "
                f"cluster is {self._ray.available_resources()}. Ask for less, or wait longer "
                "(patience_s)"
            ) from error
        own = dict(request.resources)
        options = {
            "num_cpus": own.pop("CPU"),
            "num_gpus": own.pop("GPU", 0),
            "memory": own.pop("memory", None),
            "resources": own,
            "runtime_env": {"env_vars": request.variables()},
        }
        actor = self._ray.remote(Host)
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        for number in range(request.num_hosts):
            there = strategy(group, placement_group_bundle_index=number)
            self._actors.append(actor.options(**options, scheduling_strategy=there).remote())
        nodes, coordinators = zip(*self._all("place"), strict=True)
        members = [
            JobMember(
                coordinator=coordinators[0], num_processes=len(self._actors), process_id=number
            )
            for number in range(len(self._actors))
        ]
        pairs = zip(self._actors, members, strict=True)
        self._results([actor.join.remote(each, len(set(nodes)) == 1) for actor, each in pairs])

    def run(
        self, fun: Callable[..., PyTree], args: Sequence[PyTree], kwargs: dict[str, PyTree]
    ) -> PyTree:
        """Call a function on every host.

        Args:
            fun: The function; it and the arguments are sent by cloudpickle.
            args: Its arguments, in which handles stand for what lives there.
            kwargs: Those by keyword, likewise.

        Returns:
            What it returns in process 0, with handles of the arrays.

        Raises:
            ClusterError: the result, or what the function raised, cannot be sent.
            Exception: what the function raised, with the traceback of the host. Where hosts do not
                all fail, or one has died, the others are ended.
        """
        with self._lock:
            self._check_alive()
            known = len(self._trees)
            dropped = tuple(self._dropped.popleft() for _ in range(len(self._dropped)))
            try:
                call = HostCall(
                    fun=fun,
                    args=tuple(map(self._sent, (*args, *kwargs.values()))),
                    keywords=tuple(kwargs),
                    known_trees=known,
                    first_result=self._next_number,
                    dropped=dropped,
                )
                is_large = call.num_bytes > _SMALL_BYTES
                result = self._all("call", self._ray.put(call) if is_large else call)[0]
                if isinstance(result, Unsent):
                    raise ClusterError(
                        f"the result of {getattr(fun, '__name__', fun)} cannot be sent to the "
                        f"driver ({result.text}); return arrays, or None"
                    )
            except BaseException:
                self._trees.forget(known)
                self._dropped.extend(dropped)
                raise
            if result.skeleton is not None:
                self._trees.learn(result.skeleton.structure)
            leaves = list(map(self._held, result.leaves))
            return jax.tree.unflatten(self._trees[result.tree], leaves)

    def fetched(self, number: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return the values of an array.

        Args:
            number: Its number.
            shape: Its shape.
            dtype: Its dtype.
        """
        if not isinstance(dtype, np.dtype):
            raise TypeError(f"an array of {dtype} has no values of NumPy; fetch its key_data")
        whole = np.empty(shape, dtype)
        left = whole.size
        for pieces in self._all("pieces", number, is_of_each=True):
            if not left:  # Where each host has an array of its own, it is that of process 0.
                break
            for index, piece in pieces:
                whole[index] = piece
                left -= piece.size
        # A handle keeps it for all later readers.
        whole.flags.writeable = False
        return whole

    def wait(self, number: int) -> None:
        """Wait until an array is computed.

        Args:
            number: Its number.
        """
        self._all("wait", number, is_of_each=True)

    def drop(self, number: int) -> None:
        """Say that nobody holds a value any more; the next call tells the hosts.

        Args:
            number: Its number.
        """
        self._dropped.append(number)

    def shutdown(self, why: str = "shutdown() was called") -> None:
        """End the processes at once, and give back what Ray reserved.

        Args:
            why: Is told where they are called afterwards.
        """
        self._end_text = self._end_text or why
        self._end()

    def _sent(self, argument: PyTree) -> Argument:
        """Return an argument as it is sent."""
        leaves, tree = jax.tree.flatten(argument)
        sent = tuple(self._reference(x) if isinstance(x, Handle) else x for x in leaves)
        number = self._trees.number(tree)
        if number is not None:
            return Argument(number, sent)
        return Argument(self._trees.learn(tree), sent, Skeleton.of(tree))

    def _reference(self, handle: Handle) -> Stored:
        if handle.hosts is not self:
            raise ClusterError(
                f"{handle!r} lives on other hosts than those of this call; read it with np.asarray "
                "and pass the values"
            )
        return Stored(handle.number)

    def _held(self, leaf: Any) -> Any:
        """Return a leaf of a result as the driver holds it."""
        number = self._next_number
        self._next_number += 1
        if isinstance(leaf, ArrayType):
            return ArrayHandle(self, number, leaf.shape, leaf.dtype)
        return Handle(self, number) if isinstance(leaf, Staying) else leaf

    def _all(self, method: str, *args: Any, is_of_each: bool = False) -> list[Any]:
        """Call a method of every host, and return what they return.

        Args:
            method: Its name.
            *args: Its arguments.
            is_of_each: Whether a host does it without the others, so that none waits for another
                one that fails.
        """
        with self._lock:
            self._check_alive()
            calls: list[Any] = []
            try:
                calls.extend(getattr(actor, method).remote(*args) for actor in self._actors)
            except BaseException as error:
                # Hosts have come apart where only some were told, unless nobody was.
                if calls or not isinstance(error, Exception):
                    self.shutdown(f"{type(error).__name__} in the driver")
                raise
            return self._results(calls, is_of_each=is_of_each)

    def _check_alive(self) -> None:
        # Ray would connect again by itself.
        if self._end_text:
            raise ClusterError(
                f"{self.name} have ended: {self._end_text}; make new ones with mw.Cluster.ray"
            )

    def _results(self, references: Sequence[Any], *, is_of_each: bool = False) -> list[Any]:
        """Return what all hosts return, or raise what the first one that failed raised."""
        found: dict[int, Any] = {}
        errors: dict[int, Exception] = {}
        waiting = {reference: number for number, reference in enumerate(references)}
        deadline: float | None = None
        try:
            while waiting:
                left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                done, _ = self._ray.wait(list(waiting), timeout=left)
                if not done:
                    break
                number = waiting.pop(done[0])
                try:
                    found[number] = self._ray.get(done[0])
                except self._ray.exceptions.RayError as error:
                    errors[number] = error
                    deadline = deadline or time.monotonic() + _GRACE_S
        except BaseException as error:
            self.shutdown(f"{type(error).__name__} in the driver")
            raise
        if errors:
            go_on = not waiting and (is_of_each or not found)
            self._raise(errors, go_on=go_on)
        return [found[number] for number in range(len(references))]

    def _raise(self, errors: dict[int, Exception], *, go_on: bool) -> NoReturn:
        """Raise the first error, and end the hosts where they have come apart."""
        # One that has ended is why the others fail, whichever is heard first.
        ended = [pair for pair in errors.items() if getattr(pair[1], "cause", None) is None]
        number, first = (ended or list(errors.items()))[0]
        cause = getattr(first, "cause", None)
        if go_on and cause is not None:
            raise cause from first
        name = type(cause or first).__name__
        self.shutdown(f"host {number} failed with {name}, others did not")
        if cause is None:
            raise ClusterError(f"host {number} of {self.name} has ended: {first}") from first
        cause.add_note(f"This was on host {number}; the other hosts were ended.")
        raise cause from first


def _end(started: _Started) -> None:
    """End the processes of hosts, and give back what Ray reserved."""
    ray = ray_module()
    if not ray.is_initialized():
        return
    for actor in started.actors:
        with suppress(ray.exceptions.RayError):
            ray.kill(actor)
    for group in started.groups:
        ray.util.remove_placement_group(group)
    if started.has_ray and not _has_others(ray, started.groups):
        ray.shutdown()


def _has_others(ray: Any, groups: Sequence[Any]) -> bool:
    """Return whether Ray has reserved anything else, as for another cluster of this driver."""
    own = {group.id.hex() for group in groups}
    table = ray.util.placement_group_table()
    return any(name not in own and found["state"] != "REMOVED" for name, found in table.items())
