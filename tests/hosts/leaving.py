"""One process of a job whose process 1 leaves it in a way that its argument names."""

from __future__ import annotations

import sys
import threading
import time

import jax

from meshwise.runtime.job.job import current_job


def main(how: str) -> None:
    jax.distributed.initialize()
    job = current_job()
    assert job is not None
    job.exchange("the start", "")
    if job.process == 1:
        if how == "with a thread":
            threading.Thread(target=time.sleep, args=(600,)).start()
            raise ValueError("what a user did wrong")
        if how == "wrong use":
            sys.exit(2)
        if how == "after an old error":
            sys.last_value = ValueError("an old one")
        if how == "early":
            sys.exit(0)
    if how == "early":
        time.sleep(12)
    else:
        job.exchange("the end", "")
    sys.stdout.write("ended well\n")


if __name__ == "__main__":
    main(sys.argv[1])
