#include <set>
#include <string>

#include "base/progress.h"
#include "engine/weights/parameter_source.h"
#include "engine/weights/quantised_layers.h"
#include "engine/weights/quantised_reader.h"
#include "engine/weights/tensor_reader.h"

namespace specdec::model {

namespace {

// Returns whether a tensor may be in the files but is not read: a rotary buffer of old exports, or the copy of a tied
// lm_head.
bool ignored(const std::string& name, const DecoderConfig& config) {
  return name.ends_with(".rotary_emb.inv_freq") || (config.tie_embeddings && name == "lm_head.weight");
}

// Provides the parameters from the files of a model.
class StoredParameters final : public FileParameters {
 public:
  StoredParameters(const SafetensorsDirectory& files, const DecoderConfig& config, const Reading& reading)
      : files_(files),
        config_(config),
        read_as_(reading.read_as),
        keep_(reading.keep),
        reader_(files, reading.device),
        host_reader_(files, at::kCPU) {
    for (const std::string& name : files.names())
      if (!ignored(name, config)) unread_.insert(name);
  }

  at::Tensor kept_quantised(const Parameter& p) override {
    if (!keep_ || !stays_quantised(p) || !is_quantised(p)) return {};
    at::Tensor kept = keep_quantised(*keep_, p.tensor, quantised_->outputs(p.row, p.shape[0]));
    if (!kept.defined()) ++widened_;
    return kept;
  }
  at::Tensor whole(const Parameter& p) override {
    if (is_quantised(p)) return dequantised(p);
    at::Tensor out = at::empty(p.shape, read_as_);
    if (is_joined(p))
      read_joined(host_reader_, p, out);
    else
      read(host_reader_, p, {0, {0, p.shape[0]}}, out);
    return out;
  }
  void put(const Parameter& p, const Slice& slice, const at::Tensor& out) override {
    if (is_quantised(p))
      out.copy_(narrowed(dequantised(p), slice));
    else if (is_joined(p) && out.sizes() != at::IntArrayRef(p.shape))
      out.copy_(narrowed(whole(p), slice));
    else if (is_joined(p))
      read_joined(reader_, p, out);
    else
      read(reader_, p, slice, out);
  }

  void check_all_read() override {
    drop_unneeded(files_, config_.quantisation, unread_);
    if (!unread_.empty())
      throw Error(ErrorKind::kModel, std::to_string(unread_.size()) + " tensors are not part of this " +
                                         config_.model_type + " model as config.json describes it, the first is " +
                                         *unread_.begin());
  }
  bool narrowed_some() const override { return narrowed_; }
  int64_t widened() const override { return widened_; }

 private:
  static std::vector<int64_t> stored_shape(const Parameter& p) {
    std::vector<int64_t> shape = p.shape;
    shape[0] = p.stored_rows;
    return shape;
  }
  // Returns whether the stored tensor that contains p is quantised. If so, sets quantised_ to that tensor.
  bool is_quantised(const Parameter& p) {
    if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal while reading weights");
    if (p.stored != quantised_name_) {
      quantised_ = read_quantised(files_, config_.quantisation, p.stored, stored_shape(p), unread_);
      quantised_name_ = p.stored;
    }
    return quantised_.has_value();
  }
  bool is_joined(const Parameter& p) const {
    return !p.joined.stored.empty() && !files_.contains(p.stored) && files_.contains(p.joined.stored);
  }
  void read_joined(TensorReader& reader, const Parameter& p, const at::Tensor& out) {
    const JoinedPlace& place = p.joined;
    reader.read(place.stored, place.shape, {place.row, place.rows, place.column, out.numel() / place.rows}, out);
    narrowed_ |= read_as_ != at::kFloat && files_.entry(place.stored).dtype == "F32";
    unread_.erase(place.stored);
  }
  at::Tensor dequantised(const Parameter& p) const {
    return converted(kernels::dequantise(quantised_->outputs(p.row, p.shape[0])), read_as_, "tensor " + p.stored);
  }
  void read(TensorReader& reader, const Parameter& p, const Slice& slice, const at::Tensor& out) {
    const bool by_rows = slice.dim == 0;
    StoredPart part{.row = p.row, .rows = p.shape[0], .columns = p.shape.size() > 1 ? p.shape[1] : 1};
    (by_rows ? part.row : part.column) += slice.share.begin;
    (by_rows ? part.rows : part.columns) = slice.share.length;
    reader.read(p.stored, stored_shape(p), part, out);
    narrowed_ |= read_as_ != at::kFloat && files_.entry(p.stored).dtype == "F32";
    unread_.erase(p.stored);
  }

  const SafetensorsDirectory& files_;
  const DecoderConfig& config_;
  at::ScalarType read_as_;
  DecoderWeights* keep_;
  TensorReader reader_, host_reader_;
  std::set<std::string> unread_;
  std::string quantised_name_;  // name of the tensor that is_quantised() read last
  std::optional<kernels::QuantisedMatrix> quantised_;
  bool narrowed_ = false;
  int64_t widened_ = 0;
};

}  // namespace

std::unique_ptr<FileParameters> make_parameters(const SafetensorsDirectory& files, const DecoderConfig& config,
                                                const Reading& reading) {
  if (files.gguf()) return make_gguf_parameters(files, config, reading);
  return std::make_unique<StoredParameters>(files, config, reading);
}

void require_tied_head(const SafetensorsDirectory& files, const DecoderConfig& config) {
  const std::string head = "lm_head.weight", embedding = "model.embed_tokens.weight";
  if (!config.tie_embeddings || !files.contains(head) || !files.contains(embedding) || files.equal(head, embedding))
    return;
  throw Error(ErrorKind::kModel, files.file_of(head).path().string() + ": tensor " + head + " differs from " +
                                     embedding + ", and config.json ties them: set tie_word_embeddings to false if " +
                                     head + " is the model's, else remove the tensor");
}

}  // namespace specdec::model
