// A draft that is a small decoder.
#include <ATen/ATen.h>

#include <deque>
#include <vector>

#include "engine/decode/runners/draft.h"
#include "engine/decode/runners/model_runner.h"

namespace specdec::decode {

namespace {

class DecoderScorer final : public DraftScorer {
 public:
  explicit DecoderScorer(const model::Decoder& decoder) : decoder_(decoder) {}

  void begin(std::span<const int64_t> lengths) override {
    caches_.clear();
    for (const int64_t length : lengths)
      caches_.emplace_back(decoder_.config, decoder_.weights.embed.device(), decoder_.weights.embed.scalar_type())
          .reserve(length);
  }

  at::Tensor logits(const Pass& pass) override {
    std::vector<model::SequencePart> own(pass.parts.begin(), pass.parts.end());
    for (size_t i = 0; i < own.size(); ++i) own[i].cache = &caches_[pass.texts[i]];
    const at::Tensor all = model::forward(decoder_, own);
    if (static_cast<int64_t>(pass.wanted.size()) == all.size(0)) return all;
    std::vector<int64_t> rows;
    for (const Pass::Position& wanted : pass.wanted) rows.push_back(wanted.logit);
    return all.index_select(0, at::tensor(rows, at::kLong).to(all.device()));
  }

 private:
  const model::Decoder& decoder_;
  std::deque<model::KvCache> caches_;  // one KV cache per text
};

class DecoderDraft final : public Draft {
 public:
  explicit DecoderDraft(std::shared_ptr<const model::Decoder> decoder) : decoder_(std::move(decoder)) {}
  const model::DecoderConfig& config() const override { return decoder_->config; }
  at::ScalarType dtype() const override { return model::dtype_of(*decoder_); }
  std::unique_ptr<CausalModel> make_runner(CausalModel&, int64_t cache_bytes) const override {
    return make_model_runner(decoder_, cache_bytes);
  }
  std::unique_ptr<DraftScorer> make_scorer() const override { return std::make_unique<DecoderScorer>(*decoder_); }

 private:
  std::shared_ptr<const model::Decoder> decoder_;
};

}  // namespace

DraftPtr make_draft(std::shared_ptr<const model::Decoder> decoder) {
  return std::make_shared<const DecoderDraft>(std::move(decoder));
}

}  // namespace specdec::decode
