"""Other ways to send a tensor from one mesh to another: who sends which box when, and how long.

The runtime sends each tile once and makes copies inside the destination (`resharding.once`); here
stand the ways of Alpa and AlpaComm, their orders, and the simulator of flows that wait for others.
"""
