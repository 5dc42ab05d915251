// The base class of the runners of all kinds of models. It holds the sequences, whose caches are blocks of one pool,
// and copies logits to the host. Each derived class adds its passes.
#pragma once

#include <ATen/ATen.h>

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/cache/kv_cache.h"
#include "engine/decode/runners/causal_model.h"
#include "engine/forward/device_errors.h"
#include "engine/weights/draft_vocab.h"

namespace specdec::decode {

// `State` is the state of a sequence. It is constructed from an empty model::KvCache.
template <class State>
class CachedModel : public CausalModel {
 public:
  explicit CachedModel(std::shared_ptr<model::BlockPool> pool) : pool_(std::move(pool)) {}

  SequenceId open() override { return add(State(model::KvCache(pool_))); }

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

 protected:
  SequenceId add(State state) {
    sequences_.emplace(next_, std::move(state));
    return next_++;
  }
  const State& find(SequenceId sequence) const {
    const auto it = sequences_.find(sequence);
    if (it == sequences_.end())
      throw Error(ErrorKind::kInternal, "sequence " + std::to_string(sequence) + " is not open");
    return it->second;
  }
  State& find(SequenceId sequence) { return const_cast<State&>(std::as_const(*this).find(sequence)); }

  // Counts the tokens that adopt() searched for in the cached blocks, and those that it found. Returns `found`.
  int64_t count_adopted(std::span<const int32_t> asked, int64_t found) {
    asked_tokens_ += static_cast<int64_t>(asked.size());
    found_tokens_ += found;
    return found;
  }

  // Writes logits [rows, V] to `out`. `kept` are the token ids of a reduced vocabulary, or undefined for the whole
  // vocabulary. If there are no rows to copy, waits for the device, so that a caller that times the pass measures all
  // its work.
  void write_rows(const at::Tensor& logits, int64_t rows, const at::Tensor& kept, at::Device device,
                  LogitRows& out) const {
    out.vocab = vocab_size();
    const auto need = static_cast<size_t>(rows * out.vocab);
    if (out.data.size() < need) out.data.resize(need);
    if (rows == 0) return model::wait_for_device(device);
    at::from_blob(out.data.data(), {rows, out.vocab}, at::kFloat)
        .copy_(kept.defined() ? model::spread_logits(logits.to(at::kFloat), kept, out.vocab) : logits);
  }

  const std::shared_ptr<model::BlockPool> pool_;
  std::map<SequenceId, State> sequences_;

 private:
  SequenceId next_ = 0;
  int64_t asked_tokens_ = 0, found_tokens_ = 0;
};

}  // namespace specdec::decode
