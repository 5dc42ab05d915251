// CUDA graphs of a decoder's passes. A graph holds the launches of a pass that were captured once, and starts them
// together. It reads all inputs that differ between passes from its own memory, and its number of rows is rounded up,
// so that few graphs serve all passes.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "engine/forward/cuda_layers.h"
#include "engine/forward/cuda_rows.h"

namespace specdec::model {

class PassGraphs {
 public:
  static constexpr int64_t kMaxRows = kernels::kMaxProductRows, kInputBytes = 1 << 20;
  static constexpr size_t kMostGraphs = 64;  // each graph takes memory of the CUDA driver

  // Allocates the memory that all graphs share. input_bytes is the memory for the inputs of a pass; it grows when a
  // pass needs more. With the default, bytes() are allocated. `decoder` must be supported (cuda_pass_library()), must
  // not be divided among ranks, and must outlive the graphs. There are at most `most` graphs: a new one replaces the
  // least recently used one.
  explicit PassGraphs(const Decoder& decoder, int64_t input_bytes = kInputBytes, size_t most = kMostGraphs);
  ~PassGraphs();
  PassGraphs(const PassGraphs&) = delete;
  PassGraphs& operator=(const PassGraphs&) = delete;

  // Returns whether a graph can run a pass with these rows.
  bool takes(const CudaRows& rows) const;
  // Adds rows and tiles up to the numbers of the graph that will run these rows.
  void pad(CudaRows& rows) const;
  // Runs a pass of padded rows that are in the upload. The next pass overwrites the results. The first pass of each
  // Shape is captured.
  struct Result {
    at::Tensor logits;             // [num_rows, rows of lm_head]
    std::vector<at::Tensor> taps;  // the residual stream [num_rows, E] after each of the layers (HiddenObserver)
  };
  Result run(const CudaRows& rows, const DeviceUpload& upload, const std::vector<int64_t>& layers = {});

  int64_t captured() const { return static_cast<int64_t>(graphs_.size()); }
  // Returns the number of passes that this process has captured so far. A captured pass takes longer.
  static int64_t captures();
  // Returns the bytes of the memory that the graphs of such a decoder share; `dtype` is that of the embeddings.
  static int64_t bytes(const DecoderConfig& config, at::ScalarType dtype);
  // Returns how many splits of tiles (PagedRows::num_parts) a pass of such a decoder may have.
  static int64_t most_parts(const DecoderConfig& config);

 private:
  // A graph serves the passes with the same rows, tiles, splits, may_rest (CudaRows) and observed layers.
  using Shape = std::tuple<int64_t, int32_t, int32_t, bool, std::vector<int64_t>>;

  void launch(const CudaPassInputs& inputs, const std::vector<int64_t>& layers);
  void* capture(const CudaPassInputs& inputs, const std::vector<int64_t>& layers);
  void drop();
  void drop_oldest();

  CudaLayers layers_;
  CudaLayers::Room room_;
  at::Tensor input_, sums_, logits_;
  std::map<int64_t, at::Tensor> taps_;  // the observed hidden states by layer
  struct Captured {
    void* graph;
    int64_t used;  // number of the last pass that ran this graph
  };
  std::map<Shape, Captured> graphs_;
  size_t most_;
  int64_t passes_ = 0;
  int64_t parts_ = 0;  // number of splits for which sums_ has room
  int refusals_ = 0;   // number of failed captures
};

}  // namespace specdec::model
