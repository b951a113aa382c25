"""What the evaluations add to `resharding/cross_mesh`: Alpa's ways to send, and flows that wait.

`hops` says what moves from host to host under a strategy; `dependent_flows` simulates it.
"""
