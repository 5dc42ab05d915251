#include "engine/model/pass_graphs.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <string>

#include "base/log.h"
#include "engine/kernels/cuda_errors.h"

namespace specdec::model {

namespace {

// Decoding has a few rows for each text, and the kernels multiply eight rows as fast as one.
constexpr int64_t kRows[] = {1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, PassGraphs::kMaxRows};
// The splits of all tiles of a pass; a graph's passes may have so many, which is 1,024 tokens for each of 256 rows.
constexpr int64_t kParts = 2048;

}  // namespace

PassGraphs::PassGraphs(const Decoder& decoder, int64_t input_bytes)
    : layers_(decoder), room_(layers_.make_room(kMaxRows)) {
  const at::TensorOptions options = decoder.weights.embed.options();
  input_ = at::empty({input_bytes}, options.dtype(at::kByte));
  sums_ = at::empty({CudaRows::part_values(decoder.config, kParts)}, options.dtype(at::kFloat));
  logits_ = at::empty({kMaxRows, decoder.weights.lm_head.size(0)}, options);
}

PassGraphs::~PassGraphs() { drop(); }

void PassGraphs::drop() {
  for (const auto& [shape, graph] : graphs_) layers_.kernels().library().free_graph(graph);
  graphs_.clear();
}

bool PassGraphs::takes(const CudaRows& rows) const {
  return !refused_ && rows.num_rows() > 0 && rows.num_rows() <= kMaxRows && rows.paged().num_parts() <= kParts;
}

void PassGraphs::pad(CudaRows& rows) const {
  const DecoderConfig& config = layers_.decoder().config;
  const int64_t padded = *std::lower_bound(std::begin(kRows), std::end(kRows), rows.num_rows()),
                times = config.num_heads / config.num_kv_heads;
  rows.pad(padded, padded * ((times + kernels::kPagedQueries - 1) / kernels::kPagedQueries));
}

int64_t PassGraphs::bytes(const DecoderConfig& config, at::ScalarType dtype) {
  const int64_t heads = 2 * config.num_heads + 2 * config.num_kv_heads,
                width = 2 * config.hidden_size + heads * config.head_dim + config.intermediate_size + config.vocab_size;
  return kInputBytes + static_cast<int64_t>(c10::elementSize(dtype)) * kMaxRows * width +
         4 * CudaRows::part_values(config, kParts);
}

void PassGraphs::launch(const CudaPassInputs& inputs, const std::vector<int64_t>& layers) {
  const int64_t rows = inputs.ids.size(0);
  const CudaLayers::Room room = room_.first(rows);
  HiddenObserver observer;
  if (!layers.empty())
    observer = [&](int64_t layer, const at::Tensor& x) {
      if (std::find(layers.begin(), layers.end(), layer) != layers.end())
        layers_.kernels().copy(x, taps_.at(layer).narrow(0, 0, rows));
    };
  layers_.run(inputs, room, observer);
  layers_.score(room.x, room.h, logits_.narrow(0, 0, rows));
}

// Captures the launches of a pass that has just run: CUDA loads a kernel when it first runs, which no capture may
// contain. Returns null where nothing can be captured; passes then go on without graphs.
void* PassGraphs::capture(const CudaPassInputs& inputs, const std::vector<int64_t>& layers) {
  const kernels::CudaLibrary& library = layers_.kernels().library();
  void* graph = nullptr;
  int32_t code = library.begin_capture(layers_.kernels().device());
  if (code == 0) {
    try {
      launch(inputs, layers);
    } catch (...) {
      library.end_capture(layers_.kernels().device(), &graph);
      if (graph) library.free_graph(graph);
      throw;
    }
    code = library.end_capture(layers_.kernels().device(), &graph);
  }
  if (code == 0) return graph;
  refused_ = true;
  log(LogLevel::kWarn, std::string("passes run without CUDA graphs, which is slower: ") + library.error_text(code));
  return nullptr;
}

PassGraphs::Result PassGraphs::run(const CudaRows& rows, const DeviceUpload& upload,
                                   const std::vector<int64_t>& layers) {
  const int64_t count = rows.num_rows();
  Result result{.logits = logits_.narrow(0, 0, count), .taps = {}};
  for (const int64_t layer : layers) {
    at::Tensor& tap = taps_[layer];
    if (!tap.defined()) tap = at::empty_like(room_.x);
    result.taps.push_back(tap.narrow(0, 0, count));
  }
  const at::Tensor piece = rows.piece(upload);
  if (piece.numel() > input_.numel()) {
    drop();  // they read the memory that is replaced
    input_ = at::empty({2 * piece.numel()}, input_.options());
  }
  input_.narrow(0, 0, piece.numel()).copy_(piece, /*non_blocking=*/true);
  const auto splits = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(rows.paged().num_splits())));
  const Shape shape(count, splits, layers);
  if (const auto found = graphs_.find(shape); found != graphs_.end()) {
    const kernels::CudaLibrary& library = layers_.kernels().library();
    const int32_t code = library.launch_graph(layers_.kernels().device(), found->second);
    if (code != 0) kernels::throw_cuda_error(code, "a graph could not be launched", library.error_text(code));
    return result;
  }
  CudaPassInputs inputs = rows.inputs(input_, sums_);
  inputs.paged.num_splits = splits;
  launch(inputs, layers);
  void* const graph = refused_ ? nullptr : capture(inputs, layers);
  if (graph) graphs_[shape] = graph;
  return result;
}

}  // namespace specdec::model
