#include "distill/run/draft_vocab.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace specdec::distill {

namespace {

template <class F>
void each_token_to_learn(const std::vector<TokenRow>& rows, const F& f) {
  for (const TokenRow& row : rows)
    for (size_t t = 1; t < row.tokens.size(); ++t)
      if (row.loss_mask[t]) f(row, row.tokens[t]);
}

}  // namespace

std::vector<int32_t> choose_draft_vocab(const std::vector<TokenRow>& rows, int64_t size,
                                        const model::DecoderConfig& config) {
  std::vector<int64_t> count(static_cast<size_t>(config.vocab_size));
  each_token_to_learn(rows, [&](const TokenRow&, int32_t id) { ++count[static_cast<size_t>(id)]; });
  const auto keep = [&](int32_t id) {
    if (id >= 0) count[static_cast<size_t>(id)] = INT64_MAX;
  };
  for (const int32_t id : config.eos_ids) keep(id);
  keep(config.bos_id);
  keep(config.pad_id);
  std::vector<int32_t> ids(count.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return count[static_cast<size_t>(a)] > count[static_cast<size_t>(b)]; });
  ids.resize(static_cast<size_t>(size));
  std::sort(ids.begin(), ids.end());
  return ids;
}

Json vocab_coverage(const std::vector<TokenRow>& rows, const std::vector<int32_t>& draft_vocab) {
  struct Share {
    int64_t kept = 0, all = 0;
    Json value() const { return all > 0 ? Json(static_cast<double>(kept) / static_cast<double>(all)) : Json(nullptr); }
  };
  Share total;
  std::map<std::string, Share> domains;
  each_token_to_learn(rows, [&](const TokenRow& row, int32_t id) {
    const bool kept = std::binary_search(draft_vocab.begin(), draft_vocab.end(), id);
    for (Share* share : {&total, &domains[row.domain]}) ++share->all, share->kept += kept;
  });
  Json out = {{"value", total.value()}, {"domains", Json::object()}};
  for (const auto& [name, share] : domains) out["domains"][name] = share.value();
  return out;
}

}  // namespace specdec::distill
