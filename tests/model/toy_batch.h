// Makes caches that hold texts, and a pass over rows that continue the texts.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "engine/forward/forward.h"

namespace specdec::model {

// Returns `count` tokens that are determined by `number`.
inline std::vector<int32_t> tokens_of(int64_t number, int64_t count) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(static_cast<int32_t>((number * 31 + i * 7 + i * i) % 61));
  return out;
}

struct Text {
  int64_t before, count, logits;
  std::vector<int> parents = {};
};

// A pass that continues several texts. Each text has a cache, which already holds its first `before` tokens.
class Batch {
 public:
  Batch(const Decoder& decoder, const std::vector<Text>& texts) {
    for (const Text& text : texts) {
      const auto number = static_cast<int64_t>(caches_.size());
      caches_.push_back(std::make_unique<KvCache>(decoder.config, decoder.weights.embed.device(),
                                                  decoder.weights.embed.scalar_type()));
      tokens_.push_back(tokens_of(number, text.before + text.count));
      for (int64_t at = 0; at < text.before; at += 60) {
        const auto some =
            std::span(tokens_.back()).subspan(static_cast<size_t>(at), std::min<size_t>(60, text.before - at));
        const SequencePart part = {.cache = caches_.back().get(), .tokens = some, .num_logits = 0};
        forward(decoder, {&part, 1});
      }
      SequencePart& part = parts_.emplace_back();
      part.tokens = std::span(tokens_.back()).subspan(static_cast<size_t>(text.before));
      part.num_logits = text.logits;
      if (text.parents.empty()) continue;
      part.tree_mask = at::eye(text.count, at::kBool);
      for (int64_t i = 0; i < text.count; ++i) {
        const int parent = text.parents[static_cast<size_t>(i)];
        if (parent >= 0) part.tree_mask[i] = part.tree_mask[i].logical_or(part.tree_mask[parent]);
        part.positions.push_back(parent < 0 ? text.before : part.positions[static_cast<size_t>(parent)] + 1);
      }
    }
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i].cache = caches_[i].get();
  }
  const std::vector<SequencePart>& parts() const { return parts_; }

 private:
  std::vector<std::unique_ptr<KvCache>> caches_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<SequencePart> parts_;
};

// Texts of several lengths, one of which continues as a tree.
inline const std::vector<Text> kTexts = {{0, 3, 3}, {70, 1, 1}, {5, 5, 4, {-1, -1, 0, 1, 3}}, {63, 2, 0}, {130, 4, 2}};

}  // namespace specdec::model
