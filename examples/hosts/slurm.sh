#!/bin/bash
# A job of 4 hosts with one process each: sbatch slurm.sh
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=01:00:00
# With 8 GPUs a host: --ntasks-per-node=8 and --gpus-per-node=8, since JAX gives each process one.

set -e
# Ends all processes where one fails; without it the others wait for it.
export SLURM_KILL_BAD_EXIT=1

# Names, ports, versions and links, before the job depends on them.
srun meshwise doctor --hosts

srun python train.py
