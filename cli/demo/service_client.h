// Sends the requests of ServicePrompts to running servers over their OpenAI interface.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/demo/service_prompts.h"

namespace specdec::cli {

struct AnswerFigures {
  int64_t answers = 0;
  double tokens = 0, seconds = 0;  // tokens of the answers, and the time from request to reply
};

// Sends requests from number `first` on, `together` at a time, until `seconds` have passed. Each request carries its
// domain. Returns the figures of each domain, whose seconds are those of single requests. Throws Error(kNetwork) if an
// answer fails.
std::map<std::string, AnswerFigures> send_for(const std::string& url, const ServicePrompts& prompts, uint64_t seed,
                                              int64_t first, int together, double seconds);

// Sends requests [first, first + count) to each of the servers, one request at a time, the servers in turns. Returns
// for each server the figures of each domain.
std::vector<std::map<std::string, AnswerFigures>> send_in_turns(const std::vector<std::string>& urls,
                                                                const ServicePrompts& prompts, uint64_t seed,
                                                                int64_t first, int64_t count);

// Returns the greedy answer to a request.
std::string greedy_answer(const std::string& url, const ServicePrompt& prompt);

}  // namespace specdec::cli
