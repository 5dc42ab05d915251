#!/usr/bin/env bash
# Serves this package with vLLM. Arguments are handed on: engines/vllm.sh --port 8000
# Validated schedule: batch 1-4: K 3
set -euo pipefail
package=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=$package/target
draft=$package/draft
draft=$(printf '%s' "$draft" | sed 's/[\\"]/\\&/g')
exec vllm serve "$target" --served-model-name 'tiny' --dtype float32 \
  --speculative-config "{\"draft_sample_method\":\"probabilistic\",\"method\":\"draft_model\",\"model\":\"$draft\",\"num_speculative_tokens\":3,\"rejection_sample_method\":\"standard\"}" "$@"
