// Plays the demo's users: sends questions to a running server over its OpenAI interface.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "cli/demo/traffic_generator.h"
#include "data/regenerate/openai_client.h"

namespace specdec::cli {

data::OpenAiClient connect(const std::string& url);
// Sends a request to /chat/completions. Throws Error(kNetwork) if there is no answer.
Json chat(data::OpenAiClient& client, const Json& request);

struct TrafficFigures {
  int64_t answers = 0;
  double tokens = 0, seconds = 0;
};

// Sends `count` questions of the given edition, starting with conversation `first`. Each request carries its domain.
// Requests are sent one at a time, because in batches of four the draft would speed up little on two cores. Throws
// Error(kNetwork) if an answer fails.
TrafficFigures send_traffic(const std::string& url, uint64_t seed, int64_t first, int64_t count, DemoEdition edition);

// Returns the text of one chat answer.
std::string ask(const std::string& url, const std::string& question, double temperature, int64_t max_tokens);

}  // namespace specdec::cli
