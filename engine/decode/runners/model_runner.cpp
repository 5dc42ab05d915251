#include "engine/decode/runners/model_runner.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <optional>
#include <string>

#include "base/error.h"
#include "engine/cache/kv_cache.h"
#include "engine/config/rope.h"
#include "engine/decode/runners/cached_model.h"
#include "engine/decode/runners/round_models.h"
#include "engine/decode/runners/runner_parts.h"
#include "engine/decode/runners/tap_source.h"
#include "engine/forward/device_errors.h"
#include "engine/forward/forward.h"
#include "engine/forward/forward_cuda.h"
#include "engine/weights/draft_vocab.h"

namespace specdec::decode {

namespace {

class ModelRunner final : public CachedModel<model::KvCache>, public TapSource, public RoundTarget, public RoundDraft {
 public:
  ModelRunner(std::shared_ptr<const model::Decoder> decoder, int64_t cache_bytes)
      : CachedModel(std::make_shared<model::BlockPool>(decoder->config, decoder->weights.embed.device(),
                                                       decoder->weights.embed.scalar_type(), cache_bytes)),
        decoder_(std::move(decoder)) {
    const std::vector<int32_t>& kept = decoder_->config.draft_vocab;
    if (!kept.empty())
      kept_ids_ = decoder_->weights.draft_ids.defined()
                      ? decoder_->weights.draft_ids
                      : model::draft_vocab_index(kept, decoder_->weights.embed.device());
  }

  int64_t vocab_size() const override { return decoder_->config.vocab_size; }
  int64_t max_length() const override { return decoder_->config.max_position; }

  SequenceId fork(SequenceId sequence, int64_t length) override {
    const SequenceId forked = add(find(sequence).prefix(length));
    taps_.fork(sequence, forked, length);
    return forked;
  }
  void close(SequenceId sequence) override {
    const auto it = sequences_.find(sequence);
    if (it == sequences_.end()) return;
    it->second.publish();
    sequences_.erase(it);
    taps_.close(sequence);
  }
  int64_t length(SequenceId sequence) const override { return find(sequence).length(); }
  void truncate(SequenceId sequence, int64_t length) override {
    model::KvCache& cache = find(sequence);
    if (length == cache.length()) return;
    cache.truncate(length);
    taps_.truncate(sequence, length);
  }

  void keep(SequenceId sequence, int64_t length, std::span<const int64_t> places) override {
    c10::InferenceMode guard;
    model::with_device_errors([&] {
      find(sequence).keep(length, places);
      taps_.keep(sequence, length, places);
    });
  }

  void extend(std::span<const Extension> extensions, LogitRows& out) override {
    model::with_device_errors([&] { pass(extensions, out); });
  }

  int64_t adopt(SequenceId sequence, std::span<const int32_t> tokens, uint64_t tenant) override {
    if (!pool_->bounded()) return 0;
    for (auto& [id, cache] : sequences_)
      cache.publish();  // between passes caches hold only text, so blocks can be shared
    model::KvCache& cache = find(sequence);
    if (cache.length() == 0) cache.set_rope_rescale(rope_rescale_of(tokens));
    return count_adopted(tokens, cache.adopt(tokens, tenant));
  }

  int64_t cached_prefix_tokens(std::span<const int32_t> tokens, uint64_t tenant) const override {
    return pool_->find(tenant, rope_rescale_of(tokens), tokens);
  }

  RoundRunner* rounds() override { return rounds_.get(); }
  void set_rounds(std::shared_ptr<RoundRunner> rounds) override { rounds_ = std::move(rounds); }
  const model::Decoder& decoder() const override { return *decoder_; }
  model::KvCache& cache(SequenceId sequence) override { return find(sequence); }
  const model::BlockPool& pool() const override { return *pool_; }
  model::PassGraphs* graphs() override {
    if (!graphs_ && !decoder_->group && model::cuda_pass_library(*decoder_)) graphs_.emplace(*decoder_);
    return graphs_ ? &*graphs_ : nullptr;
  }
  void reserve(std::span<const Extension> extensions) override {
    parts_.clear();
    for (const Extension& e : extensions) parts_.push_back({.cache = &find(e.sequence), .tokens = e.tokens});
    check_capacity(parts_, *pool_, false);
    for (const Extension& e : extensions) {
      model::KvCache& cache = find(e.sequence);
      cache.reserve(cache.length() + static_cast<int64_t>(e.tokens.size()));
    }
  }
  at::Tensor run_pass(const model::CudaPass& pass, const model::DeviceUpload& upload,
                      std::span<const Extension> extensions) override {
    const Observation read = taps_.observe(extensions);
    return pass.run(upload, read.observer, read.layers);
  }
  void commit_pass(std::span<const Extension> extensions) override {
    lengths_.clear();
    for (const Extension& e : extensions) {
      model::KvCache& cache = find(e.sequence);
      lengths_.push_back(cache.length());
      commit_nodes(cache, {}, e.tokens, e.parents);
    }
    taps_.keep_pass(extensions, lengths_);
  }

  bool takes(SequenceId, std::span<const int32_t>, at::Device device) override {
    const at::Tensor& like = decoder_->weights.embed;
    return model::cuda_pass_library(*decoder_) && like.device() == device &&
           !model::rope_varies(decoder_->config.rope) && pool_->dtype() == like.scalar_type();
  }
  int64_t unread(SequenceId sequence, std::span<const int32_t> text) override {
    return static_cast<int64_t>(text.size()) - find(sequence).length();
  }
  std::unique_ptr<RoundDraft::Pass> make_pass(std::span<const Reader> readers, int depth, RoundDraft::Pass*) override {
    auto out = std::make_unique<DraftPass>(*decoder_, kept_ids_, graphs());
    for (const Reader& reader : readers) add_reader_rows(reader, depth, find(reader.sequence), 0, out->pass);
    return out;
  }
  void commit(const Reader& reader, std::span<const int32_t> nodes, RoundDraft::Pass&, size_t) override {
    model::KvCache& cache = find(reader.sequence);
    commit_nodes(cache, reader.text.subspan(static_cast<size_t>(cache.length())), nodes, reader.shape->parents());
  }

  std::shared_ptr<TapReader> add_reader(std::vector<int64_t> layers) override {
    return taps_.add_reader(std::move(layers));
  }
  void keep_states(TapReader& reader, SequenceId sequence) override {
    const int64_t from = length(sequence);
    reader.kept.try_emplace(sequence, KeptStates{from, from, {}});
  }

 private:
  struct DraftPass final : RoundDraft::Pass {
    DraftPass(const model::Decoder& decoder, const at::Tensor& kept, model::PassGraphs* of_decoder)
        : pass(decoder), kept_ids(kept), graphs(of_decoder) {}
    int64_t num_rows() const override { return pass.num_rows(); }
    void describe(model::DeviceUpload& upload, int32_t live, bool may_rest) override {
      pass.describe(upload, graphs, live, may_rest);
    }
    size_t live_place() const override { return pass.live_place(); }
    size_t id_place(int64_t row) const override { return pass.id_place(row); }
    void run(const model::DeviceUpload& upload, const at::Tensor& out) override {
      model::write_logits(pass.run(upload), kept_ids, out);
    }
    model::CudaPass pass;
    at::Tensor kept_ids;
    model::PassGraphs* graphs;
  };

  void pass(std::span<const Extension> extensions, LogitRows& out) {
    c10::InferenceMode guard;
    parts_.clear();
    lengths_.clear();
    int64_t rows = 0;
    for (const Extension& e : extensions) {
      model::SequencePart& part = parts_.emplace_back();
      part.cache = &find(e.sequence);
      lengths_.push_back(part.cache->length());
      part.tokens = e.tokens;
      part.num_logits = e.num_logits;
      if (!e.parents.empty()) set_tree(e.parents, part);
      rows += e.num_logits;
    }
    check_capacity(parts_, *pool_, model::rope_varies(decoder_->config.rope));
    const Observation read = taps_.observe(extensions);
    const at::Tensor logits = model::forward(*decoder_, parts_, read.observer, read.layers);
    taps_.keep_pass(extensions, lengths_);
    write_rows(logits, rows, {}, decoder_->weights.embed.device(), out);
  }

  int64_t rope_rescale_of(std::span<const int32_t> tokens) const {
    const model::RopeConfig& rope = decoder_->config.rope;
    return model::rope_varies(rope) ? model::rope_rescale(rope, static_cast<int64_t>(tokens.size())) : 0;
  }

  std::shared_ptr<const model::Decoder> decoder_;
  at::Tensor kept_ids_;                      // ids that the model proposes as a draft; undefined: all
  std::optional<model::PassGraphs> graphs_;  // created when decoding on the GPU first needs them
  std::vector<model::SequencePart> parts_;
  std::vector<int64_t> lengths_;  // lengths of the caches before the pass
  TapStore taps_;
  std::shared_ptr<RoundRunner> rounds_;  // refers to the members above, so it is destroyed before them
};

}  // namespace

std::unique_ptr<CausalModel> make_model_runner(std::shared_ptr<const model::Decoder> decoder, int64_t cache_bytes) {
  return std::make_unique<ModelRunner>(std::move(decoder), cache_bytes);
}

}  // namespace specdec::decode
