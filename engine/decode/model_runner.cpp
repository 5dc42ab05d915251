#include "engine/decode/model_runner.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include "base/error.h"
#include "engine/model/forward.h"
#include "engine/model/kv_cache.h"
#include "engine/model/rope.h"

namespace specdec::decode {

namespace {

class ModelRunner final : public CausalModel {
 public:
  ModelRunner(std::shared_ptr<const model::Decoder> decoder, int64_t cache_bytes)
      : decoder_(std::move(decoder)),
        pool_(std::make_shared<model::BlockPool>(decoder_->config, decoder_->weights.embed.device(),
                                                 decoder_->weights.embed.scalar_type(), cache_bytes)) {}

  int64_t vocab_size() const override { return decoder_->config.vocab_size; }
  int64_t max_length() const override { return decoder_->config.max_position; }

  SequenceId open() override {
    caches_.emplace(next_, model::KvCache(pool_));
    return next_++;
  }
  SequenceId fork(SequenceId sequence, int64_t length) override {
    caches_.emplace(next_, find(sequence).prefix(length));
    return next_++;
  }
  void close(SequenceId sequence) override {
    const auto it = caches_.find(sequence);
    if (it == caches_.end()) return;
    it->second.publish();
    caches_.erase(it);
  }
  int64_t length(SequenceId sequence) const override { return find(sequence).length(); }
  void truncate(SequenceId sequence, int64_t length) override {
    model::KvCache& cache = find(sequence);
    if (length != cache.length()) cache.truncate(length);
  }

  void keep(SequenceId sequence, int64_t length, std::span<const int64_t> places) override {
    c10::InferenceMode guard;
    find(sequence).keep(length, places);
  }

  void extend(std::span<const Extension> extensions, LogitRows& out) override {
    c10::InferenceMode guard;
    parts_.clear();
    int64_t rows = 0;
    for (const Extension& e : extensions) {
      model::SequencePart& part = parts_.emplace_back();
      part.cache = &find(e.sequence);
      part.tokens = e.tokens;
      part.num_logits = e.num_logits;
      if (!e.parents.empty()) set_tree(e, part);
      rows += e.num_logits;
    }
    check_capacity();
    const at::Tensor logits = model::forward(*decoder_, parts_);
    out.vocab = vocab_size();
    const size_t need = static_cast<size_t>(rows * out.vocab);
    if (out.data.size() < need) out.data.resize(need);
    if (rows > 0) at::from_blob(out.data.data(), {rows, out.vocab}, at::kFloat).copy_(logits);
  }

  int64_t adopt(SequenceId sequence, std::span<const int32_t> tokens, uint64_t tenant) override {
    if (!pool_->bounded()) return 0;
    for (auto& [id, cache] : caches_) cache.publish();  // between passes caches hold only text, so blocks can be shared
    model::KvCache& cache = find(sequence);
    if (cache.length() == 0) cache.set_rope_rescale(rope_rescale_of(tokens));
    const int64_t found = cache.adopt(tokens, tenant);
    asked_tokens_ += static_cast<int64_t>(tokens.size());
    found_tokens_ += found;
    return found;
  }

  int64_t adoptable(std::span<const int32_t> tokens, uint64_t tenant) const override {
    return pool_->find(tenant, rope_rescale_of(tokens), tokens);
  }

  int64_t capacity_tokens() const override {
    return pool_->bounded() ? pool_->num_blocks() * model::BlockPool::kTokens : std::numeric_limits<int64_t>::max();
  }

  CacheCounts cache_counts() const override {
    const int64_t block = pool_->block_bytes();
    return {.budget_bytes = pool_->bounded() ? pool_->num_blocks() * block : 0,
            .held_bytes = pool_->held() * block,
            .kept_bytes = pool_->kept() * block,
            .asked_tokens = asked_tokens_,
            .found_tokens = found_tokens_};
  }

 private:
  int64_t rope_rescale_of(std::span<const int32_t> tokens) const {
    const model::RopeConfig& rope = decoder_->config.rope;
    return model::rope_varies(rope) ? model::rope_rescale(rope, static_cast<int64_t>(tokens.size())) : 0;
  }

  // Throws CacheFull, before anything is written, if the pass may need more blocks than are available. A last block
  // that several of these sequences share counts once for each.
  void check_capacity() const {
    int64_t blocks = 0;
    for (const model::SequencePart& part : parts_)
      blocks += part.cache->blocks_missing(static_cast<int64_t>(part.tokens.size()),
                                           model::rope_varies(decoder_->config.rope));
    if (blocks > pool_->available())
      throw CacheFull("the KV cache is full: the next pass needs " + std::to_string(blocks) + " blocks of " +
                      std::to_string(model::BlockPool::kTokens) + " tokens, " + std::to_string(pool_->available()) +
                      " of " + std::to_string(pool_->num_blocks()) + " are free; end sequences or give it more memory");
  }

  // Builds the mask and the positions of a tree. Every token sees the cache, its ancestors and itself. Its position is
  // the cache's length plus the number of its ancestors.
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
  model::KvCache& find(SequenceId sequence) { return const_cast<model::KvCache&>(std::as_const(*this).find(sequence)); }

  std::shared_ptr<const model::Decoder> decoder_;
  std::shared_ptr<model::BlockPool> pool_;
  std::map<SequenceId, model::KvCache> caches_;
  std::vector<model::SequencePart> parts_;
  SequenceId next_ = 0;
  int64_t asked_tokens_ = 0, found_tokens_ = 0;
};

}  // namespace

std::unique_ptr<CausalModel> make_model_runner(std::shared_ptr<const model::Decoder> decoder, int64_t cache_bytes) {
  return std::make_unique<ModelRunner>(std::move(decoder), cache_bytes);
}

}  // namespace specdec::decode
