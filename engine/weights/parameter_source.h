// Provides the values of a decoder's parameters, which are requested in the order of list_parameters().
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>

#include "base/safetensors.h"
#include "engine/kernels/cpu/cpu.h"
#include "engine/weights/weights.h"

namespace specdec::model {

inline at::Tensor narrowed(const at::Tensor& whole, const Slice& slice) {
  return whole.narrow(slice.dim, slice.share.begin, slice.share.length);
}

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  // Returns the packed matrix of a parameter that stays quantised (kernels/quantised_matrix.h), or nothing.
  virtual at::Tensor kept_quantised(const Parameter&) { return {}; }
  // Returns the kind of a matrix that stays quantised in blocks (kernels/block_quantised.h), or nothing. Such a matrix
  // is packed by packed_blocks() into `memory`, which has block_shape().
  virtual std::optional<kernels::cpu::BlockKind> block_kind(const Parameter&) { return {}; }
  virtual at::Tensor packed_blocks(const Parameter&, const at::Tensor& /*memory*/) { return {}; }
  // Returns a whole parameter on the CPU.
  virtual at::Tensor whole(const Parameter& p) = 0;
  // Writes a slice of a parameter to `out`, which has the slice's shape, converted to the dtype and device of `out`.
  virtual void put(const Parameter& p, const Slice& slice, const at::Tensor& out) {
    out.copy_(narrowed(whole(p), slice));
  }
};

// Provides parameters from the files of a model.
class FileParameters : public ParameterSource {
 public:
  // Throws Error(kModel) if the files have tensors that no parameter needs.
  virtual void check_all_read() = 0;
  virtual bool narrowed_some() const = 0;  // whether fp32 was converted to a narrower dtype
  virtual int64_t widened() const = 0;     // number of quantised matrices that had to be dequantised
};

// How the parameters of a file are read. Tensors that are quantised in the files are converted to `read_as`, except
// those that stay quantised: on a GPU in the weights `keep`, on a CPU if `keep` is not null.
struct Reading {
  at::Device device;
  at::ScalarType read_as;
  DecoderWeights* keep = nullptr;
};
// `files` and `config` must outlive the result. For a GGUF file the result is make_gguf_parameters().
std::unique_ptr<FileParameters> make_parameters(const SafetensorsDirectory& files, const DecoderConfig& config,
                                                const Reading& reading);
// Reads the tensors of a GGUF file.
std::unique_ptr<FileParameters> make_gguf_parameters(const SafetensorsDirectory& files, const DecoderConfig& config,
                                                     const Reading& reading);

// Throws Error(kModel) if the files store an lm_head that differs from the embedding although config.json ties the two.
// Some engines would use the stored lm_head, others the embedding, so they would run different models.
void require_tied_head(const SafetensorsDirectory& files, const DecoderConfig& config);

}  // namespace specdec::model
