"""What a driver does without any Ray: names of arguments, and the end of one cluster of two."""

from __future__ import annotations

import importlib.util
import pickle
import sys
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import meshwise as mw
from meshwise.api.ray_step import RayStep
from meshwise.errors import ClusterError, LaunchError
from meshwise.hosts.ray import ray_hosts
from meshwise.hosts.ray.host import Argument, Host, HostCall, Staying, Unsent
from meshwise.hosts.ray.host_request import HostRequest
from meshwise.hosts.ray.trees import Skeleton


class Here:
    """A cluster whose only host is this process."""

    described = None

    def run(self, fun: Any, /, *args: Any, **kwargs: Any) -> Any:
        found = fun(*args, **kwargs)
        return found.value if isinstance(found, Staying) else found


def kept(fun: Any, *, cluster: None, method: None) -> Any:
    return fun


def test_a_step_takes_keywords_of_any_name() -> None:
    def train_step(state: int, step: int, fun: int) -> tuple[int, int, int]:
        return state, step, fun

    cluster: Any = Here()
    run = RayStep(train_step, cluster, partial(kept, method=None))
    assert run(1, step=2, fun=3) == (1, 2, 3)


class NeedsTwo(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: meshwise[ray]"
)


def a_call(fun: Any) -> HostCall:
    return HostCall(fun=fun, args=(), keywords=(), known_trees=0, first_result=0, dropped=())


@needs_ray
def test_what_cannot_be_sent_is_named_where_all_hosts_go_on() -> None:
    def fail() -> None:
        raise NeedsTwo(1, 2)

    host = Host()
    with pytest.raises(ClusterError, match="NeedsTwo: 1 and 2") as info:
        host.call(a_call(fail))
    assert isinstance(pickle.loads(pickle.dumps(info.value)), ClusterError)
    assert isinstance(info.value.__cause__, NeedsTwo)
    found = host.call(a_call(threading.Lock))
    assert isinstance(found, Unsent)
    assert "lock" in found.text


@needs_ray
def test_an_error_that_can_be_sent_is_sent() -> None:
    def fail() -> None:
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        Host().call(a_call(fail))


OPENED: list[int] = []


def opened(number: int) -> int:
    OPENED.append(number)
    return number


class Opening:
    """A value that says when it is unpickled."""

    def __reduce__(self) -> Any:
        return opened, (7,)


@needs_ray
def test_what_a_loop_captures_is_unpickled_when_it_begins() -> None:
    captured = Opening()
    run: Any = mw.ray.trainer(lambda: captured, hosts=2, devices_per_host=1).train_loop_per_worker
    there = pickle.loads(pickle.dumps(run.args[0]))
    assert OPENED == []
    assert there() == 7
    assert OPENED == [7]


class FakeRay(SimpleNamespace):
    """Ray, with one reservation for each of some clusters."""

    def __init__(self, names: list[str]) -> None:
        self.states = dict.fromkeys(names, "CREATED")
        self.is_running = True
        self.exceptions = SimpleNamespace(RayError=RuntimeError)
        self.util = SimpleNamespace(
            remove_placement_group=self.remove,
            placement_group_table=lambda: {n: {"state": s} for n, s in self.states.items()},
        )

    def is_initialized(self) -> bool:
        return self.is_running

    def remove(self, group: Any) -> None:
        self.states[group.id.hex()] = "REMOVED"

    def shutdown(self) -> None:
        self.is_running = False


def started(name: str, *, has_ray: bool) -> Any:
    group = SimpleNamespace(id=SimpleNamespace(hex=lambda: name))
    return ray_hosts._Started(actors=[], groups=[group], has_ray=has_ray)


def test_the_end_of_one_cluster_leaves_ray_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = started("a", has_ray=True), started("b", has_ray=False)
    ray = FakeRay(["a", "b"])
    monkeypatch.setitem(sys.modules, "ray", ray)
    ray_hosts._end(first)
    assert (ray.is_running, ray.states) == (True, {"a": "REMOVED", "b": "CREATED"})
    ray_hosts._end(second)
    alone = FakeRay(["a"])
    monkeypatch.setitem(sys.modules, "ray", alone)
    ray_hosts._end(first)
    assert not alone.is_running


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"resources_per_host": {"CPU": 0}}, "reserves nothing"),
        ({"resources_per_host": {"GPU": -1}}, "GPU=-1 must be a number of at least 0"),
        ({"env_vars": {"A": 1}}, "A=1 must be a text"),
    ],
)
def test_what_ray_would_refuse_is_refused(asked: dict[str, Any], text: str) -> None:
    with pytest.raises(LaunchError, match=text):
        HostRequest(num_hosts=2, devices_per_host=1, **asked)


class Actor:
    """An actor that takes calls until one is interrupted."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.count = 0
        self.call = SimpleNamespace(remote=self.remote)

    def remote(self) -> object:
        if self.error is not None:
            raise self.error
        self.count += 1
        return object()


def hosts_of(*actors: Actor) -> Any:
    hosts: Any = object.__new__(ray_hosts.RayHosts)
    hosts.name, hosts._end_text = "2 hosts of Ray", ""
    hosts._lock, hosts._actors, hosts._end = threading.RLock(), list(actors), lambda: None
    return hosts


@pytest.mark.parametrize(
    ("actors", "error", "has_ended"),
    [
        ((Actor(KeyboardInterrupt()),), KeyboardInterrupt, True),
        ((Actor(), Actor(ValueError())), ValueError, True),
        # Nobody was told: what cannot be sent is no reason to end.
        ((Actor(ValueError()), Actor()), ValueError, False),
    ],
)
def test_a_call_that_only_some_hosts_got_ends_them(
    actors: tuple[Actor, ...], error: type[BaseException], has_ended: bool
) -> None:
    hosts = hosts_of(*actors)
    with pytest.raises(error):
        hosts._all("call")
    assert bool(hosts._end_text) == has_ended


def test_an_array_that_each_host_has_alone_is_that_of_process_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    each = [[((slice(None),), np.arange(2 + n))] for n in range(2)]
    hosts = hosts_of()
    monkeypatch.setattr(hosts, "_all", lambda *_, **__: each)
    found = hosts.fetched(0, (2,), np.dtype(int))
    np.testing.assert_array_equal(found, [0, 1])
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1  # The handle keeps it.


def test_an_array_in_parts_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    each = [[((slice(n, n + 1),), np.full(1, n))] for n in range(2)]
    hosts = hosts_of()
    monkeypatch.setattr(hosts, "_all", lambda *_, **__: each)
    np.testing.assert_array_equal(hosts.fetched(0, (2,), np.dtype(int)), [0, 1])


def test_a_result_that_was_not_sent_is_an_error_here(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = hosts_of()
    hosts._trees, hosts._dropped, hosts._next_number = ray_hosts.Trees(), ray_hosts.deque(), 0
    monkeypatch.setattr(hosts, "_all", lambda *_, **__: [Unsent("no lock"), None])
    with pytest.raises(ClusterError, match="no lock"):
        hosts.run(threading.Lock, (), {})
    assert not hosts._end_text
    told = Argument(0, (3,), Skeleton.of(jax.tree.structure(3)))
    monkeypatch.setattr(hosts, "_all", lambda *_, **__: [told, None])
    assert hosts.run(int, (), {}) == 3


class FakeResults:
    """What Ray has of calls that have ended."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def wait(self, references: list[Any], timeout: float | None) -> tuple[list[Any], list[Any]]:
        return references[:1], references[1:]

    def get(self, reference: Any) -> Any:
        if isinstance(reference, Exception):
            raise reference
        return reference


def failed(cause: Exception | None) -> RuntimeError:
    error = RuntimeError("as Ray tells it")
    error.cause = cause  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("is_of_each", "cause", "has_ended"),
    [(False, ValueError("one"), True), (True, ValueError("one"), False), (True, None, True)],
)
def test_hosts_go_on_where_each_reads_for_itself(
    is_of_each: bool, cause: Exception | None, has_ended: bool
) -> None:
    hosts = hosts_of()
    hosts._ray = FakeResults()
    with pytest.raises(ClusterError if cause is None else ValueError):
        hosts._results([1, failed(cause)], is_of_each=is_of_each)
    assert bool(hosts._end_text) == has_ended


def test_a_host_that_has_ended_is_named_though_another_one_fails_first() -> None:
    hosts = hosts_of()
    hosts._ray = FakeResults()
    with pytest.raises(ClusterError, match="host 1 of 2 hosts of Ray has ended"):
        hosts._results([failed(ValueError("connection closed")), failed(None)])
    assert hosts._end_text
