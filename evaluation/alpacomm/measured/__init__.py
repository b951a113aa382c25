"""AlpaComm's cases measured between the hosts of a testbed.

`transfers.transfers` lists what is sent, `process` is what runs on each host, `run.measure` runs it
on a testbed, `page.page` writes what came out; `results` compares it with plans and simulations.
"""
