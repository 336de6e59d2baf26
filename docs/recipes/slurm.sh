#!/bin/bash
# A Ray cluster in a SLURM allocation, and one campaign on it: sbatch docs/recipes/slurm.sh TARGET SEED
# Every node needs the same Python environment (torch, the device, torch-conformance[ray]); the job's folder is shared or not.
#SBATCH --job-name=conformance
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=08:00:00
#SBATCH --signal=B:TERM@300
set -euo pipefail

target=${1:?the target to test, for example device:mydevice,import=my_backend}
seed=${2:-0}
reports=${REPORTS:-reports/$SLURM_JOB_ID}
per_worker=${PER_WORKER:-CPU=1}
port=6379

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --all-ip-addresses | awk '{print $1}')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')  # of this job's cluster alone; srun passes it on

# Ray starts a worker's supervisor for each CPU; what the subjects run is limited by --per-worker.
srun --nodes=1 --ntasks=1 --nodelist="$head" \
  ray start --head --node-ip-address="$address" --port="$port" --disable-usage-stats --block &
until ray status --address "$address:$port" > /dev/null 2>&1; do sleep 2; done
if ((${#nodes[@]} > 1)); then
  others=$(IFS=,; echo "${nodes[*]:1}")
  srun --nodes=$((${#nodes[@]} - 1)) --ntasks-per-node=1 --nodelist="$others" \
    ray start --address="$address:$port" --block &
fi

workers=$((SLURM_JOB_NUM_NODES * SLURM_CPUS_ON_NODE))
# SIGTERM five minutes before the end writes the report; the same line with --resume goes on in the next job.
conformance fuzz --target "$target" --seed "$seed" --minutes "${MINUTES:-420}" -n "$workers" \
  --pool "$address:$port" --per-worker "$per_worker" --reports "$reports" --resume &
campaign=$!
trap 'kill -TERM "$campaign"' TERM
wait "$campaign" || wait "$campaign"
