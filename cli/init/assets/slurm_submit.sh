#!/bin/bash
# Runs a command as a Slurm job, waits for its end, and ends with its exit code. LOOP.toml needs in [loop]:
#   launcher = ["bash", "slurm/submit.sh"]
# The loop then runs where it needs no GPU, and distill in the queue. A stop of the loop cancels the job, which saves a checkpoint.
cd @SHELL_DIRECTORY@ || exit 74
said=$(mktemp) || exit 74
trap 'rm -f "$said"' EXIT
stopped=
sbatch --wait --parsable slurm/distill.sbatch "$@" > "$said" &
waiting=$!
# shellcheck disable=SC2329 # the trap calls it
stop() {
  stopped=1
  job=$(head -n 1 "$said")
  if [ -n "$job" ]; then scancel "${job%%;*}"; else kill "$waiting"; fi
}
trap stop TERM INT
wait "$waiting"
code=$?
while kill -0 "$waiting" 2>/dev/null; do # a signal has ended only the waiting
  wait "$waiting"
  code=$?
done
if [ -n "$stopped" ] || [ ! -s "$said" ]; then exit 75; fi # stopped, or the queue took no job: sbatch has said why
exit "$code"
