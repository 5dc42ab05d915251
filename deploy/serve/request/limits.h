// Limits on the requests of a client. A comment with a number from 400 on gives the HTTP status of the reply to a
// request beyond the limit. The values are defaults. Tests try values just under, at and above each limit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "deploy/serve/request/request_numbers.h"

namespace specdec::deploy {

// Limits on computing the masks of grammars (mask_workers.h).
struct MaskLimits {
  size_t threads = 2;  // threads that compute masks; one tenant may use at most one
  // An answer's masks may take `seconds` of CPU time in all, plus `seconds_per_mask` for each mask. An answer beyond
  // that ends with status 400, grammar_too_costly. A mask of an ordinary schema takes a tenth of a millisecond.
  double seconds = 1, seconds_per_mask = 0.001;
  // Size limit in bytes of an answer's grammar matcher; an answer beyond it ends with status 400, too. These bytes
  // count towards held_bytes.
  size_t bytes = 16 << 20;
  // The engine waits at most this long per step for masks that are almost computed.
  double wait_seconds_per_step = 0.001;
};

struct ServeLimits {
  // Limits of the HTTP transport, with the HTTP status of the refusal.
  size_t header_bytes = 32 << 10;      // request line and headers: status 431
  size_t header_fields = 100;          // 431
  size_t body_bytes = 8 << 20;         // status 413, for chunked bodies, too
  size_t connections = 1024;           // beyond it an idle or slow connection is closed; if there is none, 503
  size_t admin_connections = 16;       // the same limit for the Unix socket
  size_t small_body_bytes = 64 << 10;  // larger bodies share one worker, and count towards held_bytes while arriving
  double header_seconds = 10, body_seconds = 30, idle_seconds = 75, write_seconds = 30, total_seconds = 600;
  // Limits of the body; the reply is 400 and names the parameter. The ranges of numeric fields are in
  // request_numbers.cpp.
  int json_depth = 64;
  size_t array_items = 65536;  // items in each array or object
  size_t messages = 2048;
  size_t prompts = 64;
  size_t choices = 128;      // answers of a request: prompts × n
  int64_t n = kMostAnswers;  // answers to one prompt
  size_t stop_strings = 16, stop_bytes = 256;
  size_t stop_tokens = 256;
  size_t logit_biases = 1024;
  size_t bad_words = 256, bad_word_bytes = 256;
  MaskLimits masks;
  size_t grammar_bytes = 64 << 10;   // bytes of a JSON schema, a regular expression or all choices together
  size_t tools = 128;                // offered functions, and function calls in one message
  size_t tool_bytes = 256 << 10;     // bytes of all offered functions together
  size_t template_bytes = 16 << 10;  // bytes of chat_template_kwargs
  size_t domain_bytes = 32;          // bytes of metadata.domain, the segment in acceptance records
  size_t conversation_bytes = 128;   // bytes of metadata.conversation_id
  size_t domains = 64;               // distinct domains with their own series; later ones are counted as "other"
  // Total size of the bodies, prompts and replies of all unanswered requests; a request beyond it gets status 429. If
  // there are several tenants, each may use half of it.
  size_t held_bytes = 1 << 30;
  // Size of a text that may exceed the context: for /tokenize, or with truncate_prompt_tokens.
  size_t long_text_bytes = 1 << 20;
  size_t reply_bytes = 64 << 20;  // bytes of one reply; beyond it 400, naming the parameter at fault
  // Bytes of one stream's text that the client has not fetched yet; beyond them the request is cancelled.
  size_t pending_bytes = 1 << 20;
};

}  // namespace specdec::deploy
