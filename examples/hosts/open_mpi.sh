#!/bin/sh
# A job of 4 hosts with one process each, under Open MPI 4: sh open_mpi.sh hosts.txt
# hosts.txt names a machine a line. JAX finds the job by itself (docs/hosts.md, for Open MPI 5 too).

set -e
# Names, ports, versions and links, before the job depends on them.
mpirun -np 4 --hostfile "$1" --map-by ppr:1:node meshwise doctor --hosts

mpirun -np 4 --hostfile "$1" --map-by ppr:1:node python train.py
