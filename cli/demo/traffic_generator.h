// Generates the demo's production traffic: support, kitchen, travel and workshop conversations written by a small
// grammar. Every domain has topics. Which words may follow a function word depends on the topic, which was named many
// tokens before, so a one-layer transformer can predict these words but a bigram draft cannot. There are two editions:
// the updated edition has other words and sentence patterns, in the style of the target after its "overnight update".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace specdec::cli {

struct DemoConversation {
  std::string id, domain, question, answer;
  int64_t time = 0;  // Unix seconds, increasing
};

enum class DemoEdition { kFirst, kUpdated };

const std::vector<std::string>& demo_domains();

// Returns conversation number `index` for `seed`. Philox draws it, so it is the same on every machine.
DemoConversation demo_conversation(uint64_t seed, int64_t index, DemoEdition edition);

// Returns an OpenAI chat JSONL row: {"id","domain","created","messages":[user, assistant]}.
std::string to_chat_row(const DemoConversation& conversation);

}  // namespace specdec::cli
