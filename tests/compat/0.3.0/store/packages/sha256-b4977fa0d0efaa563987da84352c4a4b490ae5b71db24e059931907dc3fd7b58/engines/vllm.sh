#!/usr/bin/env bash
# Serves this package with vLLM. Arguments are handed on: engines/vllm.sh --port 8000
# Gate: pass: speed-up at batch 1 1.500 [1.400, 1.600]
# Schedule: batch 1-4: K 3 (validated: measured 1.50 [1.40, 1.60])
set -euo pipefail
package=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=$package/target
draft=$package/draft
draft=$(printf '%s' "$draft" | sed 's/[\\"]/\\&/g')
exec vllm serve "$target" --served-model-name 'tiny' --dtype float32 \
  --speculative-config "{\"draft_sample_method\":\"probabilistic\",\"method\":\"draft_model\",\"model\":\"$draft\",\"num_speculative_tokens\":3,\"rejection_sample_method\":\"standard\"}" "$@"
