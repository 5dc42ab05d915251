// The limits on what one client may ask of the server, with the HTTP status of the reply to a request beyond a limit.
// Each figure is a default, and tests try values just under, at and above it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "deploy/serve/request/request_numbers.h"

namespace specdec::deploy {

// The limits on the masks of grammars (mask_workers.h).
struct MaskLimits {
  size_t threads = 2;  // of which one tenant has at most one
  // An answer's masks may take `seconds` of CPU time, and `seconds_per_mask` more for each of them, else it ends with
  // 400 grammar_too_costly. An ordinary schema takes a tenth of a millisecond a mask.
  double seconds = 1, seconds_per_mask = 0.001;
  // An answer's matcher may occupy this many bytes; beyond that it ends in the same way. They count towards held_bytes.
  size_t bytes = 16 << 20;
  // The engine waits at most this long in one step for masks that are nearly there.
  double wait_seconds_per_step = 0.001;
};

struct ServeLimits {
  // transport
  size_t header_bytes = 32 << 10;      // request line and headers: 431
  size_t header_fields = 100;          // 431
  size_t body_bytes = 8 << 20;         // with Content-Length and chunked alike: 413
  size_t connections = 1024;           // at the limit an idle or slow one is closed; if there is none: 503 and close
  size_t admin_connections = 16;       // of the Unix socket, with the same rule
  size_t small_body_bytes = 64 << 10;  // larger ones share one worker, and count towards held_bytes while they arrive
  double header_seconds = 10, body_seconds = 30, idle_seconds = 75, write_seconds = 30, total_seconds = 600;
  // body (400 naming the parameter); the ranges of numeric fields are in request_numbers.cpp
  int json_depth = 64;
  size_t array_items = 65536;  // of each array or object
  size_t messages = 2048;
  size_t prompts = 64;
  size_t choices = 128;      // prompts × n
  int64_t n = kMostAnswers;  // answers to one prompt
  size_t stop_strings = 16, stop_bytes = 256;
  size_t stop_tokens = 256;
  size_t logit_biases = 1024;
  size_t bad_words = 256, bad_word_bytes = 256;
  MaskLimits masks;
  size_t grammar_bytes = 64 << 10;   // a JSON schema or regular expression, or all choices together
  size_t tools = 128;                // offered functions, and calls in one message
  size_t tool_bytes = 256 << 10;     // all offered functions together
  size_t template_bytes = 16 << 10;  // chat_template_kwargs
  size_t domain_bytes = 32;          // metadata.domain, the segment of acceptance records
  size_t conversation_bytes = 128;   // metadata.conversation_id
  size_t domains = 64;               // distinct ones; later ones are counted as "other"
  // Bytes that the bodies, prompts and replies of all unanswered requests may hold, else 429. With several tenants each
  // may hold half of it.
  size_t held_bytes = 1 << 30;
  // a text that may be longer than the context: for /tokenize, or with truncate_prompt_tokens
  size_t long_text_bytes = 1 << 20;
  size_t reply_bytes = 64 << 20;  // of one request: 400 naming the parameter that makes it so long
  // text of one stream that the client has not fetched yet; over the limit the request is cancelled
  size_t pending_bytes = 1 << 20;
};

}  // namespace specdec::deploy
