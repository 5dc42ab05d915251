#include "engine/decode/model_runner.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/error.h"
#include "engine/model/forward.h"
#include "engine/model/kv_cache.h"

namespace specdec::decode {

namespace {

class ModelRunner final : public CausalModel {
 public:
  explicit ModelRunner(std::shared_ptr<const model::Decoder> decoder) : decoder_(std::move(decoder)) {}

  int64_t vocab_size() const override { return decoder_->config.vocab_size; }
  int64_t max_length() const override { return decoder_->config.max_position; }

  SequenceId open() override {
    const at::Tensor& embed = decoder_->weights.embed;
    caches_.emplace(next_, model::KvCache(decoder_->config, embed.device(), embed.scalar_type()));
    return next_++;
  }
  SequenceId fork(SequenceId sequence, int64_t length) override {
    c10::InferenceMode guard;
    caches_.emplace(next_, find(sequence).prefix(length));
    return next_++;
  }
  void close(SequenceId sequence) override { caches_.erase(sequence); }
  int64_t length(SequenceId sequence) const override { return find(sequence).length(); }
  void truncate(SequenceId sequence, int64_t length) override {
    auto& cache = const_cast<model::KvCache&>(find(sequence));
    if (length != cache.length()) cache.truncate(length);
  }

  void keep(SequenceId sequence, int64_t length, std::span<const int64_t> places) override {
    c10::InferenceMode guard;
    const_cast<model::KvCache&>(find(sequence)).keep(length, places);
  }

  void extend(std::span<const Extension> extensions, LogitRows& out) override {
    c10::InferenceMode guard;
    parts_.clear();
    int64_t rows = 0;
    for (const Extension& e : extensions) {
      model::SequencePart& part = parts_.emplace_back();
      part.cache = &const_cast<model::KvCache&>(find(e.sequence));
      part.tokens = e.tokens;
      part.num_logits = e.num_logits;
      if (!e.parents.empty()) set_tree(e, part);
      rows += e.num_logits;
    }
    const at::Tensor logits = model::forward(*decoder_, parts_);
    out.vocab = vocab_size();
    const size_t need = static_cast<size_t>(rows * out.vocab);
    if (out.data.size() < need) out.data.resize(need);
    if (rows > 0) at::from_blob(out.data.data(), {rows, out.vocab}, at::kFloat).copy_(logits);
  }

 private:
  // Every token sees the cache, its ancestors and itself, and stands as deep as it has ancestors.
  static void set_tree(const Extension& e, model::SequencePart& part) {
    const auto count = static_cast<int64_t>(e.tokens.size());
    part.tree_mask = at::zeros({count, count}, at::kBool);
    bool* mask = part.tree_mask.mutable_data_ptr<bool>();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t parent = e.parents[static_cast<size_t>(i)];
      if (parent >= i) throw Error(ErrorKind::kInternal, "a tree's token comes before its parent");
      if (parent >= 0) std::copy_n(mask + parent * count, parent + 1, mask + i * count);
      mask[i * count + i] = true;
      part.positions.push_back(parent < 0 ? part.cache->length() : part.positions[static_cast<size_t>(parent)] + 1);
    }
  }

  const model::KvCache& find(SequenceId sequence) const {
    const auto it = caches_.find(sequence);
    if (it == caches_.end()) throw Error(ErrorKind::kInternal, "sequence " + std::to_string(sequence) + " is not open");
    return it->second;
  }

  std::shared_ptr<const model::Decoder> decoder_;
  std::map<SequenceId, model::KvCache> caches_;
  std::vector<model::SequencePart> parts_;
  SequenceId next_ = 0;
};

}  // namespace

std::unique_ptr<CausalModel> make_model_runner(std::shared_ptr<const model::Decoder> decoder) {
  return std::make_unique<ModelRunner>(std::move(decoder));
}

}  // namespace specdec::decode
