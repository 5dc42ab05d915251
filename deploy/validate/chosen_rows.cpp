#include "deploy/validate/chosen_rows.h"

#include <map>
#include <string>
#include <utility>

#include "base/philox.h"
#include "deploy/validate/speed.h"

namespace specdec::deploy {

std::vector<TokenRow> shuffled(std::vector<TokenRow> rows, int64_t limit, uint64_t seed) {
  std::map<std::string, size_t> place;
  std::vector<std::vector<size_t>> conversations;
  for (size_t i = 0; i < rows.size(); ++i) {
    size_t at = conversations.size();
    if (!rows[i].conversation.empty()) at = place.try_emplace(rows[i].conversation, at).first->second;
    if (at == conversations.size()) conversations.emplace_back();
    conversations[at].push_back(i);
  }
  PhiloxStream random(seed, /*stream=*/0x6f726465);
  std::vector<TokenRow> out;
  for (size_t left = conversations.size(); left > 0; --left) {
    std::swap(conversations[random.below(left)], conversations[left - 1]);
    for (const size_t i : conversations[left - 1]) {
      if (limit > 0 && static_cast<int64_t>(out.size()) == limit) return out;
      out.push_back(std::move(rows[i]));
    }
  }
  return out;
}

std::vector<TokenRow> pick(const std::vector<TokenRow>& rows, int64_t count) {
  std::vector<TokenRow> chosen;
  for (const size_t i : choose_prompts(rows, count)) chosen.push_back(rows[i]);
  return chosen;
}

}  // namespace specdec::deploy
