"""A step of a pipeline with a clock beside it: what each mesh did and when.

Each mesh has a thread that waits for every instruction, as a worker of its own would; so the host
does not run ahead, and a step takes longer than one that is only dispatched.  A mesh is busy while
a program runs on it; it waits where it receives what has not arrived.  In a job each process sees
its own meshes, and all are told what each saw.  What every process takes part in is started by one
more thread, in the order of the step, as soon as a mesh offers it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

import jax
from jax import Array

from meshwise.program.instructions import Instruction, Receive, Run, Send
from meshwise.runtime.pipeline.buffers import local_bytes
from meshwise.runtime.pipeline.interpreter import Pipeline, PipelineStep
from meshwise.runtime.pipeline.seen import MeshSeen, Seen, timeline_of
from meshwise.runtime.pipeline.traffic import messages, stage_of_program
from meshwise.simulate.timeline import (
    APPLY,
    BACKWARD,
    FORWARD,
    SYNC,
    WEIGHT,
    Event,
    MemoryStep,
    Timeline,
)

# By the first word of a program's name; all others run once a step.
_KINDS = {"forward": FORWARD, "backward": BACKWARD, "weights": WEIGHT, "apply": APPLY}


def measured_step(
    pipeline: Pipeline,
    flat: Sequence[Array],
    at_commit: Callable[[], None] = lambda: None,
    label: str = "a step",
) -> tuple[list[Array], Timeline]:
    """One step, and its timeline.

    Arguments are moved to their meshes before the clock starts.

    Args:
        pipeline: What runs.
        flat: Arguments of the step, of any placement.
        at_commit: Called when the state is taken over.
        label: Which step it is, as for `Pipeline.run`.
    """
    return _Measured(pipeline, flat, at_commit, label).run()


class _Measured:
    """One step while it runs; what threads share."""

    def __init__(
        self, pipeline: Pipeline, flat: Sequence[Array], at_commit: Callable[[], None], label: str
    ) -> None:
        self.pipeline = pipeline
        self.step = PipelineStep(pipeline, flat, label)
        jax.block_until_ready(self.step.buffers)
        self.stages = stage_of_program(pipeline)
        self.messages = messages(pipeline)
        self.here = sorted(pipeline.indices)
        self.arrivals = [threading.Event() for _ in self.messages]
        self.crossing = [
            (mesh, instruction)
            for _, mesh, _, instruction in pipeline.steps
            if isinstance(instruction, Send) and instruction.transfer in pipeline.crossing
        ]
        # For each transfer of those that a mesh of this process sends, what is sent.
        self.offers: dict[int, Future[Array]] = {
            send.transfer: Future() for mesh, send in self.crossing if mesh in self.here
        }
        # Programs of several devices must come to all of them in one order.
        self.dispatching = threading.Lock()
        self.commit = threading.Barrier(len(self.here), action=at_commit)
        self.stopped = threading.Event()
        self.errors: list[BaseException] = []
        self.seen = Seen({m: MeshSeen() for m in self.here})
        self.bytes: dict[int, dict[int, int]] = {
            m: {b: local_bytes(x, x.sharding) for b, x in self.step.buffers[m].items()}
            for m in self.here
        }
        for m in self.here:
            self.seen.meshes[m].memory.append(MemoryStep(0.0, sum(self.bytes[m].values())))
        if pipeline.job is not None:
            # The clocks of all processes start together.
            pipeline.job.exchange("the beginning of a measured step", label)
        self.start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self.start

    def run(self) -> tuple[list[Array], Timeline]:
        first = self.first_after_commit()
        workers = [
            threading.Thread(target=self.mesh, args=(m, first[m]), name=f"mesh {m}")
            for m in self.here
        ]
        if self.crossing:
            workers.append(threading.Thread(target=self.exchange, name="exchange"))
        with ThreadPoolExecutor(max(len(workers), 1), "transfers") as self.pool:
            for worker in workers:
                worker.start()
            try:
                for worker in workers:
                    worker.join()
            except BaseException:
                self.stop()
                for worker in workers:
                    worker.join()
                raise
        if self.errors:
            raise self.errors[0]
        self.seen.end_s = self.now()
        return self.step.results(), timeline_of(self.told(), self.messages)

    def told(self) -> list[Seen]:
        """Return what all processes saw."""
        job, meshes = self.pipeline.job, self.pipeline.meshes
        if job is None:
            return [self.seen]
        # Of a mesh in several processes the one with its first device tells.
        mine = [m for m in self.here if meshes[m].devices.flat[0].process_index == job.process]
        texts = job.exchange("what was seen of a measured step", self.seen.to_json(mine))
        return [Seen.from_json(text) for text in texts]

    def first_after_commit(self) -> list[int]:
        """For each mesh how many of its instructions come before the state is taken over."""
        found = [0] * len(self.pipeline.meshes)
        for mesh in self.pipeline.program.order[: self.pipeline.commit]:
            found[mesh] += 1
        return found

    def stop(self) -> None:
        """Let all threads end at their next instruction."""
        self.stopped.set()
        self.commit.abort()
        for offer in list(self.offers.values()):
            offer.cancel()
        for arrival in self.arrivals:
            arrival.set()

    def mesh(self, mesh: int, after: int) -> None:
        """All instructions of a mesh, one after the other."""
        instructions = self.pipeline.program.meshes[mesh].instructions
        try:
            for instruction in instructions[:after]:
                self.instruction(mesh, instruction)
            self.commit.wait()
            for instruction in instructions[after:]:
                self.instruction(mesh, instruction)
        except (threading.BrokenBarrierError, _Stopped):
            pass  # another one failed
        except BaseException as error:
            self.failed(error)

    def exchange(self) -> None:
        """Start the transfers that every process takes part in, in the order of all processes."""
        try:
            for mesh, send in self.crossing:
                value = None
                if mesh in self.here:
                    value = self.offers[send.transfer].result()
                    del self.offers[send.transfer]
                if self.stopped.is_set():
                    return
                with self.dispatching:
                    self.step.transfer(send.transfer, value)
                if send.mesh in self.here:
                    self.pool.submit(self.arrived, send.transfer)
        except CancelledError:
            pass  # another one failed
        except BaseException as error:
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        self.errors.append(error)
        self.stop()

    def instruction(self, mesh: int, instruction: Instruction) -> None:
        """One instruction, waited for."""
        if self.stopped.is_set():
            raise _Stopped
        begin = self.now()
        if isinstance(instruction, Receive):
            self.receive(mesh, instruction, begin)
        buffers = self.step.buffers[mesh]
        if isinstance(instruction, Send) and instruction.transfer in self.pipeline.crossing:
            self.seen.sent_s[instruction.transfer] = begin
            self.offers[instruction.transfer].set_result(buffers[instruction.buffer])
            return
        with self.dispatching:
            self.step.step(mesh, instruction)
        if isinstance(instruction, Run):
            jax.block_until_ready([buffers[b] for b in instruction.outputs])
            self.seen.meshes[mesh].events.append(self.event(mesh, instruction, begin))
        elif isinstance(instruction, Send):
            self.seen.sent_s[instruction.transfer] = begin
            if instruction.mesh in self.here:
                self.pool.submit(self.arrived, instruction.transfer)
        self.note_memory(mesh)

    def receive(self, mesh: int, instruction: Receive, begin: float) -> None:
        """Wait for a transfer that was sent here; ask for it first if another process sends it."""
        number = instruction.transfer
        if instruction.mesh in self.here or number in self.pipeline.crossing:
            self.arrivals[number].wait()
            if self.stopped.is_set():
                raise _Stopped
        else:
            with self.dispatching:
                self.step.transfer(number, None)
            self.arrived(number)
        self.seen.meshes[mesh].waits.append((number, begin, self.now()))

    def event(self, mesh: int, run: Run, begin: float) -> Event:
        """Return what a program did, joined to the event right before if that is one task."""
        kind = _KINDS.get(run.label.partition(" ")[0], SYNC)
        stage = self.stages[run.program]
        mine = self.seen.meshes[mesh].events
        if mine and mine[-1][1:4] == (kind, stage, run.microbatch) and self.is_next(mesh, begin):
            begin = mine.pop().start_s
        return Event(mesh, kind, stage, run.microbatch, begin, self.now())

    def is_next(self, mesh: int, begin: float) -> bool:
        """Return whether the mesh has not waited since its last program."""
        return begin - self.seen.meshes[mesh].events[-1].end_s < _JOINED_S

    def arrived(self, transfer: int) -> None:
        """Wait for a transfer."""
        try:
            jax.block_until_ready(self.step.travelling[transfer])
            self.seen.arrived_s[transfer] = self.now()
            self.arrivals[transfer].set()
        except BaseException as error:
            self.failed(error)

    def note_memory(self, mesh: int) -> None:
        """How much the buffers of a mesh take on one device."""
        buffers, sizes = self.step.buffers[mesh], self.bytes[mesh]
        for b in sizes.keys() - buffers.keys():
            del sizes[b]
        for b in buffers.keys() - sizes.keys():
            sizes[b] = local_bytes(buffers[b], buffers[b].sharding)
        total = sum(sizes.values())
        memory = self.seen.meshes[mesh].memory
        if total != memory[-1].num_bytes:
            memory.append(MemoryStep(self.now(), total))


# Between two programs of one task there is only what the host does: no wait for a transfer.
_JOINED_S = 1e-3


class _Stopped(Exception):
    """Another thread failed."""
