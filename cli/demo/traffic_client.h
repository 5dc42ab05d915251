// The demo's users: questions sent to a running server over its OpenAI interface.
#pragma once

#include <cstdint>
#include <string>

#include "cli/demo/traffic_generator.h"

namespace specdec::cli {

struct TrafficFigures {
  int64_t answers = 0;
  double tokens = 0, seconds = 0;
};

// Sends `count` questions of the given edition, starting at conversation `first`, one after the other (a batch of four
// would leave the draft little to gain on two cores); each carries its domain. Throws Error(kNetwork) if an answer
// fails.
TrafficFigures send_traffic(const std::string& url, uint64_t seed, int64_t first, int64_t count, DemoEdition edition,
                            double temperature);

// One chat answer's text.
std::string ask(const std::string& url, const std::string& question, double temperature, int64_t max_tokens);

}  // namespace specdec::cli
