#!/bin/bash
# Runs a command as a Kubernetes Job made of kubernetes/distill-job.yaml, waits for its end, and ends with its exit code. LOOP.toml needs
# in [loop]:
#   launcher = ["bash", "kubernetes/submit.sh"]
# The loop then runs where kubectl reaches the cluster. This directory must be the same in the pod, which mounts the claim there. A stop
# of the loop deletes the Job, whose pod saves a checkpoint.
cd @SHELL_DIRECTORY@ || exit 74
words=
for word in "$@"; do
  word=${word//\\/\\\\}
  words+="${words:+, }\"${word//\"/\\\"}\""
done
job=specdec-distill-$(date +%s)-$$
text=$(cat kubernetes/distill-job.yaml) || exit 74
text=${text//JOB_NAME/"$job"}
kubectl create --filename - <<< "${text//JOB_WORDS/"$words"}" >&2 || exit 75
# shellcheck disable=SC2329 # the trap calls it
stop() {
  kubectl delete job "$job" --wait=true >&2
  exit 75
}
trap stop TERM INT
ended=
until [ -n "$ended" ]; do
  sleep "${SPECDEC_POLL_SECONDS:-5}" &
  wait $! # a signal ends it
  ended=$(kubectl get job "$job" --output 'jsonpath={.status.conditions[?(@.status=="True")].type}' | grep -oE 'Complete|Failed')
done
kubectl logs "job/$job" >&2
code=$(kubectl get pods --selector "job-name=$job" --output 'jsonpath={.items[0].status.containerStatuses[0].state.terminated.exitCode}')
kubectl delete job "$job" --wait=false >&2
exit "${code:-75}" # without a code the pod was lost
