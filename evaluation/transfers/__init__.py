"""What the evaluations add to `resharding/cross_mesh`: Alpa's ways to send, and flows that wait.

`route_flows` says what of a route moves between hosts; `dependent_flows` simulates it.
"""
