#!/usr/bin/env bash
# The API by curl, as documentation shows it. Run by run.py.
set -euo pipefail

json='Content-Type: application/json'
expect() { # NAME PATTERN TEXT
  grep -qE -- "$2" <<<"$3" || { printf '%s: no %s in\n%s\n' "$1" "$2" "$3" >&2; exit 1; }
}
post() { curl -sS --fail-with-body --max-time 120 "$OCTAVO_URL$1" -H "$json" -d "$2"; }

expect models "\"id\":\"$OCTAVO_MODEL\"" "$(curl -sS "$OCTAVO_URL/v1/models")"
expect health '"ready":true' "$(curl -sS "$OCTAVO_URL/health")"
expect version '"version":' "$(curl -sS "$OCTAVO_URL/version")"
expect metrics '^vllm:num_requests_running' "$(curl -sS "$OCTAVO_URL/metrics")"
expect page '<!doctype html>' "$(curl -sS --compressed "$OCTAVO_URL/")"

chat='{"model":"'$OCTAVO_MODEL'","messages":[{"role":"user","content":"Name the capital of France."}],"temperature":0,"max_tokens":20'
expect chat '"content":"[^"]*Paris' "$(post /v1/chat/completions "$chat}")"
stream=$(curl -sSN "$OCTAVO_URL/v1/chat/completions" -H "$json" -d "$chat,\"stream\":true}")
expect stream '^data: \[DONE\]$' "$stream"
expect stream '"role":"assistant"' "$(head -1 <<<"$stream")"
expect headers 'content-type: text/event-stream' \
  "$(curl -sS -D - -o /dev/null "$OCTAVO_URL/v1/chat/completions" -H "$json" -d "$chat,\"stream\":true}" | tr 'A-Z' 'a-z')"
expect completion '"text":"[^"]*Paris' \
  "$(post /v1/completions '{"prompt":"The capital of France is","max_tokens":8,"temperature":0}')"

# curl sends a large body after "Expect: 100-continue", a body from a pipe in chunks, and asks for HTTP/2 where it can.
words=$(printf 'word %.0s' $(seq 1 20000))
expect overflow 'maximum context length is 2048 tokens' \
  "$(curl -sS "$OCTAVO_URL/v1/completions" -H "$json" -d "{\"prompt\":\"$words\"}")"
expect chunked '"text":' "$(printf '{"prompt":"a","max_tokens":1}' |
  curl -sS -T - -X POST "$OCTAVO_URL/v1/completions" -H "$json")"
expect upgrade '"object":"list"' "$(curl -sS --http2 "$OCTAVO_URL/v1/models")"
expect error '"type":"invalid_request_error"' "$(curl -sS "$OCTAVO_URL/v1/completions" -d '{"prompt":')"
[ "$(curl -sS -o /dev/null -w '%{http_code}' "$OCTAVO_URL/v1/nothing")" = 404 ]
# A client that hangs up after a second does no harm.
curl -sSN --max-time 1 "$OCTAVO_URL/v1/completions" >/dev/null 2>&1 \
  -d '{"prompt":"a","max_tokens":2000,"ignore_eos":true,"stream":true}' || true
expect alive '"text":"[^"]*Paris' \
  "$(post /v1/completions '{"prompt":"The capital of France is","max_tokens":8,"temperature":0}')"
