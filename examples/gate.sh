#!/usr/bin/env bash
# gate.sh TARGET DRAFT DATA OUT [FLAG...]: runs the gate on a draft, and tells a pipeline what to do with it.
#
#     gate.sh models/target run/draft traffic gate --against store:production
#
# FLAGs go to `specdec validate`. Its exit code is the verdict (docs/validate.md); this script ends with
#   0   the draft passed, or the gate decided nothing: only the first prints "take=yes"
#   1   the draft must not be taken: it is too bad, changes the text, is of another target, or makes nothing faster
#   75  something is busy or down: run the job again
#   or with the code of the error: wrong flags (2), bad models or data (7), a GPU that fails (8), a full disk (74)
# In GitHub Actions "take" is also an output of the step.
set -euo pipefail
[ $# -ge 4 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
target=$1 draft=$2 data=$3 out=$4
shift 4

code=0
specdec validate --target "$target" --draft "$draft" --data "$data" --out "$out" "$@" || code=$?
take=no
case $code in
  0) take=yes ;;
  3 | 5 | 6) code=1 ;;
  4) code=0 ;;  # inconclusive: the report's line `next` says what to measure
esac
echo "take=$take"
if [ -n "${GITHUB_OUTPUT:-}" ]; then echo "take=$take" >> "$GITHUB_OUTPUT"; fi
exit "$code"
