#include "engine/decode/sampling/logprobs.h"

#include <algorithm>
#include <cmath>

#include "engine/decode/sampling/sampler.h"

namespace specdec::decode {

PositionLogprobs logprobs_of(std::span<const float> logits, int32_t token, int count) {
  const double largest = logits[static_cast<size_t>(argmax(logits))], log_largest = std::log(max_probability(logits));
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(logits[static_cast<size_t>(id)] - largest + log_largest);
  };
  PositionLogprobs out;
  out.token = {token, logprob(token)};
  const auto before = [&](const TokenLogprob& a, const TokenLogprob& b) {
    const float x = logits[static_cast<size_t>(a.id)], y = logits[static_cast<size_t>(b.id)];
    return x > y || (x == y && a.id < b.id);
  };
  const size_t limit = static_cast<size_t>(std::max(count, 0));
  for (int32_t id = 0; limit > 0 && id < static_cast<int32_t>(logits.size()); ++id) {
    if (out.top.size() == limit) {
      if (!before({id, 0}, out.top.front())) continue;
      std::pop_heap(out.top.begin(), out.top.end(), before);
      out.top.pop_back();
    }
    out.top.push_back({id, 0});
    std::push_heap(out.top.begin(), out.top.end(), before);
  }
  std::sort_heap(out.top.begin(), out.top.end(), before);
  for (TokenLogprob& entry : out.top) entry.logprob = logprob(entry.id);
  return out;
}

}  // namespace specdec::decode
