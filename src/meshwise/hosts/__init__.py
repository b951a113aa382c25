"""Jobs of many processes: starting one on this machine, and checking one before its processes meet.

Others use `launch.launch`, which starts the processes of a script and ends them together;
`member.JobMember`, the place of a process in its job, with `detection`, which finds it as JAX does;
and `roll_call.roll_call`, which checks hosts, ports, names and links with plain sockets.
`worker` runs in each process that `launch` starts.  `data` gives each process its part of a batch.
"""
