"""What a process has sent arrives, also where it is done before the other one connects."""

from __future__ import annotations

from doubles.processes import run_job, texts


def test_a_sender_may_be_done_before_the_receiver_connects() -> None:
    ended = run_job("hosts.sent_before_met", (1, 1), limit_s=60)
    for process in ended:
        assert process.code == 0, texts(ended)
        assert "passed" in process.text, texts(ended)
