#include "engine/config/shard.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace specdec::model {

namespace {

// Returns the kv heads that a rank keeps.
Share key_heads(const DecoderConfig& config, int rank, int count) {
  const int64_t heads = config.num_kv_heads;
  if (heads >= count) return {heads / count * rank, heads / count};
  return {heads * rank / count, 1};
}

}  // namespace

int64_t key_copies(const DecoderConfig& config, int count) { return std::max<int64_t>(1, count / config.num_kv_heads); }

Share share_of(int64_t total, int rank, int count) {
  const int64_t begin = total * rank / count;
  return {begin, total * (rank + 1) / count - begin};
}

Slice slice_of(Split split, const std::vector<int64_t>& shape, const DecoderConfig& config, int rank, int count) {
  const auto heads = [&](Share of) { return Share{of.begin * config.head_dim, of.length * config.head_dim}; };
  switch (split) {
    case Split::kQueryHeads:
      return {0, heads(share_of(config.num_heads, rank, count))};
    case Split::kQueryHeadColumns:
      return {1, heads(share_of(config.num_heads, rank, count))};
    case Split::kKeyHeads:
      return {0, heads(key_heads(config, rank, count))};
    case Split::kInner:
    case Split::kVocabulary:
      return {0, share_of(shape[0], rank, count)};
    case Split::kInnerColumns:
      return {1, share_of(shape[1], rank, count)};
    case Split::kNone:
      break;
  }
  return {0, {0, shape[0]}};
}

DecoderConfig shard_config(const DecoderConfig& config, int rank, int count) {
  const auto refuse = [count](const std::string& why) {
    throw Error(ErrorKind::kUsage, std::to_string(count) + " ranks cannot hold this target together: " + why);
  };
  if (config.num_heads % count != 0)
    refuse("its " + std::to_string(config.num_heads) + " attention heads cannot be divided by " +
           std::to_string(count));
  const int64_t keys = config.num_kv_heads;
  if (std::max<int64_t>(keys, count) % std::min<int64_t>(keys, count) != 0)
    refuse("neither can its " + std::to_string(keys) + " heads of keys and values be divided by " +
           std::to_string(count) + " nor the other way round");
  if (std::min(config.vocab_size, config.hidden_size) < count) refuse("it is too small");
  DecoderConfig own = config;
  own.num_heads = share_of(config.num_heads, rank, count).length;
  own.num_kv_heads = key_heads(config, rank, count).length;
  own.intermediate_size = share_of(config.intermediate_size, rank, count).length;
  own.expert_intermediate_size = share_of(config.expert_intermediate_size, rank, count).length;
  return own;
}

}  // namespace specdec::model
