// A draft that is an EAGLE-3 head.
#include <ATen/ATen.h>

#include <deque>
#include <optional>
#include <vector>

#include "engine/decode/runners/draft.h"
#include "engine/decode/runners/eagle_runner.h"
#include "engine/forward/eagle_forward.h"
#include "engine/weights/draft_vocab.h"

namespace specdec::decode {

namespace {

class EagleScorer final : public DraftScorer {
 public:
  explicit EagleScorer(const model::EagleHead& head) : head_(head) {}

  int64_t first_position() const override { return 1; }  // reads token i with the state of i − 1
  void begin(std::span<const int64_t> lengths) override {
    texts_.clear();
    const model::DecoderConfig& layer = head_.config.layer;
    for (const int64_t length : lengths)
      texts_.push_back({model::KvCache(layer, head_.weights.fc.device(), layer.dtype), {}}),
          texts_.back().cache.reserve(length);
  }
  model::HiddenObserver observer() override { return taps_.emplace(head_.config).observer(); }

  // Row r combines the state of position r with token r + 1. This pass therefore begins with row begin − 1, and stores
  // the last state for the next pass.
  at::Tensor logits(const Pass& pass) override {
    const at::Tensor states = taps_.value().rows();
    std::vector<model::SequencePart> own;
    std::vector<at::Tensor> hidden;
    std::vector<int64_t> first_row(texts_.size());  // index of row 0 of each text among the rows of this pass
    int64_t row = 0, state = 0;
    for (size_t i = 0; i < pass.parts.size(); ++i) {
      Text& text = texts_[pass.texts[i]];
      const std::span<const int32_t> tokens = pass.parts[i].tokens;
      const auto count = static_cast<int64_t>(tokens.size());
      at::Tensor fed = states.narrow(0, state, count);
      state += count;
      if (pass.begin > 0) fed = at::cat({text.last_state, fed});
      text.last_state = fed.narrow(0, fed.size(0) - 1, 1).clone();
      const int64_t begin = std::max<int64_t>(pass.begin - 1, 0), rows = fed.size(0) - 1;
      first_row[pass.texts[i]] = row - begin;
      row += rows;
      if (rows == 0) continue;
      own.push_back({.cache = &text.cache, .tokens = tokens.last(static_cast<size_t>(rows))});
      hidden.push_back(fed.narrow(0, 0, rows));
    }
    if (own.empty()) return {};
    const model::EagleOutput out = model::eagle_pass(head_, own, model::fuse_taps(head_, at::cat(hidden)));
    if (pass.wanted.empty()) return {};
    std::vector<int64_t> wanted;
    for (const Pass::Position& at : pass.wanted) wanted.push_back(first_row[at.text] + at.position - 1);
    const at::Tensor normed = out.normed.index_select(0, at::tensor(wanted, at::kLong).to(out.normed.device()));
    return model::spread_logits(model::eagle_logits(head_, normed).to(at::kFloat), head_.config.layer.draft_vocab,
                                head_.config.layer.vocab_size);
  }

 private:
  struct Text {
    model::KvCache cache;
    at::Tensor last_state;  // the target's hidden states [1, A·E] at the last position so far
  };
  const model::EagleHead& head_;
  std::deque<Text> texts_;
  std::optional<model::TapReader> taps_;  // reads the target's last pass
};

class EagleDraft final : public Draft {
 public:
  explicit EagleDraft(std::shared_ptr<const model::EagleHead> head) : head_(std::move(head)) {}
  const model::DecoderConfig& config() const override { return head_->config.layer; }
  at::ScalarType dtype() const override { return config().dtype; }
  std::optional<model::HeadMemory> head_memory() const override { return model::head_memory(head_->config); }
  std::unique_ptr<CausalModel> make_runner(CausalModel& target, int64_t cache_bytes) const override {
    return make_eagle_runner(head_, target, cache_bytes);
  }
  std::unique_ptr<DraftScorer> make_scorer() const override { return std::make_unique<EagleScorer>(*head_); }

 private:
  std::shared_ptr<const model::EagleHead> head_;
};

}  // namespace

DraftPtr make_draft(std::shared_ptr<const model::EagleHead> head) {
  return std::make_shared<const EagleDraft>(std::move(head));
}

}  // namespace specdec::decode
