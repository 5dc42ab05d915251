// Turns the events of one queued request into its HTTP reply, as one body or as a stream.
#pragma once

#include <memory>
#include <string>

#include "deploy/serve/answer/reply.h"
#include "deploy/serve/http/http.h"
#include "deploy/serve/queue/queue.h"
#include "text/tokenizer.h"

namespace specdec::deploy {

struct GenerationReply {
  ReplyFrame frame;
  bool stream = false;
  std::shared_ptr<const GenerationRequest> request;
  std::shared_ptr<const text::TokenBytes> token_bytes;
  size_t reply_bytes = 0;        // limit of a whole reply; exceeding it ends the request with status 400
  std::string max_tokens_param;  // the parameter that the error message of this 400 names
};

std::shared_ptr<Exchange> make_generation(GenerationReply reply);

}  // namespace specdec::deploy
