#!/usr/bin/env bash
# serve_and_curl.sh FLAG...: starts `specdec serve FLAG...` on a free port, asks it with curl and stops it.
#
#     serve_and_curl.sh --target models/target --draft run/draft
#     serve_and_curl.sh store:production
#
# It needs `specdec` and `curl` on PATH. Every request below can be copied; a server that was started by hand listens on
# http://127.0.0.1:8000. With keys (serve --api-key-file), add -H "Authorization: Bearer KEY".
set -euo pipefail
[ $# -gt 0 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }

log=$(mktemp)
specdec serve "$@" --port 0 2> "$log" &
server=$!
trap 'kill "$server" 2> /dev/null || true; wait "$server" || true; rm -f "$log"' EXIT

# The line "listening on URL" says that the models are loaded.
url=
until [ -n "$url" ]; do
  kill -0 "$server" 2> /dev/null || { cat "$log" >&2; exit 1; }
  sleep 0.1
  url=$(sed -n 's/^listening on //p' "$log")
done
ask() { curl --fail-with-body --silent --show-error --header 'Content-Type: application/json' "$@"; }

echo "--- the models that it serves"
ask "$url/v1/models"

echo "--- an answer to a chat"
ask "$url/v1/chat/completions" --data '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}'

echo "--- a text goes on, without a chat template"
ask "$url/v1/completions" --data '{"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}'

echo "--- streamed: one line 'data: {…}' for each piece, the last one 'data: [DONE]'"
ask --no-buffer "$url/v1/completions" --data '{"prompt": "Once upon a time", "max_tokens": 16, "stream": true}'

echo "--- what the draft was worth: drafted and accepted tokens"
ask "$url/metrics" | grep -E '^specdec:spec_decode_num_(draft|accepted)_tokens_total'
