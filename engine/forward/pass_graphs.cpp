#include "engine/forward/pass_graphs.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <iterator>
#include <string>
#include <utility>

#include "base/device_lost.h"
#include "base/log.h"
#include "engine/kernels/cuda_errors.h"

namespace specdec::model {

namespace {

// The numbers of rows of graphs. A decoding pass has few rows per sequence, and kernels multiply eight rows as fast as
// one.
constexpr int64_t kRows[] = {1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, PassGraphs::kMaxRows};
// Memory for the sums of all splits of a pass. For an 8B model it suffices for 64 sequences of 2,000 tokens, which have
// 1,024 splits.
constexpr int64_t kSumBytes = int64_t{96} << 20;
// After this many failed captures, no more are tried on the device.
constexpr int kMostRefusals = 3;

std::atomic<int64_t> all_captures = 0;

// A capture of what this thread launches. Unless end() was called, the destructor ends it: otherwise the thread's
// further launches would be captured, too, and never run.
class Capture {
 public:
  explicit Capture(const CudaKernels& kernels) : library_(kernels.library()), device_(kernels.device()) {}
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  ~Capture() {
    if (runs_) end(nullptr);
  }

  int32_t begin() {
    const int32_t code = library_.begin_capture(device_);
    runs_ = code == 0;
    return code;
  }
  // Sets `graph` to the captured graph, or to null if it fails. Without `graph`, what was captured is freed.
  int32_t end(void** graph) {
    runs_ = false;
    void* captured = nullptr;
    const int32_t code = library_.end_capture(device_, &captured);
    if (captured && (!graph || code != 0)) library_.free_graph(std::exchange(captured, nullptr));
    if (graph) *graph = captured;
    return code;
  }

 private:
  const kernels::CudaLibrary& library_;
  int32_t device_;
  bool runs_ = false;
};

}  // namespace

PassGraphs::PassGraphs(const Decoder& decoder, int64_t input_bytes, size_t most)
    : layers_(decoder), room_(layers_.make_room(kMaxRows)), most_(most), parts_(most_parts(decoder.config)) {
  const at::TensorOptions options = decoder.weights.embed.options();
  input_ = at::empty({input_bytes}, options.dtype(at::kByte));
  sums_ = at::empty({CudaRows::part_values(decoder.config, parts_)}, options.dtype(at::kFloat));
  logits_ = at::empty({kMaxRows, decoder.weights.lm_head.size(0)}, options);
}

PassGraphs::~PassGraphs() { drop(); }

void PassGraphs::drop() {
  for (const auto& [shape, captured] : graphs_) layers_.kernels().library().free_graph(captured.graph);
  graphs_.clear();
}

void PassGraphs::drop_oldest() {
  const auto oldest = std::min_element(graphs_.begin(), graphs_.end(),
                                       [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
  layers_.kernels().library().free_graph(oldest->second.graph);
  graphs_.erase(oldest);
}

bool PassGraphs::takes(const CudaRows& rows) const {
  return refusals_ < kMostRefusals && rows.num_rows() > 0 && rows.num_rows() <= kMaxRows &&
         rows.paged().num_parts() <= parts_;
}

int64_t PassGraphs::most_parts(const DecoderConfig& config) {
  const int64_t bytes = static_cast<int64_t>(sizeof(float)) * CudaRows::part_values(config, 1);
  return std::max(kMaxRows, kSumBytes / bytes);
}

int64_t PassGraphs::captures() { return all_captures; }

void PassGraphs::pad(CudaRows& rows) const {
  const auto rounded = [](int64_t n) {
    const auto found = std::lower_bound(std::begin(kRows), std::end(kRows), n);
    return found != std::end(kRows) ? *found : (n + kMaxRows - 1) / kMaxRows * kMaxRows;
  };
  rows.pad(rounded(rows.num_rows()), rounded(static_cast<int64_t>(rows.paged().tiles().size())));
}

int64_t PassGraphs::bytes(const DecoderConfig& config, at::ScalarType dtype) {
  const int64_t heads = 3 * config.num_heads + 2 * config.num_kv_heads,
                width = 2 * config.hidden_size + heads * config.head_dim + config.intermediate_size + config.vocab_size;
  return kInputBytes + static_cast<int64_t>(c10::elementSize(dtype)) * kMaxRows * width +
         static_cast<int64_t>(sizeof(float)) * CudaRows::part_values(config, most_parts(config)) +
         CudaKernels::wide_bytes(config.intermediate_size, dtype);
}

void PassGraphs::launch(const CudaPassInputs& inputs, const std::vector<int64_t>& layers) {
  const int64_t rows = inputs.ids.size(0);
  const CudaLayers::Room room = room_.first(rows);
  HiddenObserver observer;
  if (!layers.empty())
    observer = [&](int64_t layer, const at::Tensor& x) {
      layers_.kernels().copy(x, taps_.at(layer).narrow(0, 0, rows));
    };
  layers_.run(inputs, room, observer, layers);
  layers_.score(room.x, room.h, logits_.narrow(0, 0, rows), inputs.paged.live);
}

// Captures the launches of a pass that has just run: CUDA loads a kernel when it first runs, which is not allowed
// during a capture. Returns null if the capture fails; the pass has its results nevertheless. Throws DeviceLost, and
// other exceptions of the launches; the capture has then ended.
void* PassGraphs::capture(const CudaPassInputs& inputs, const std::vector<int64_t>& layers) {
  const kernels::CudaLibrary& library = layers_.kernels().library();
  ++all_captures;
  Capture capture(layers_.kernels());
  void* graph = nullptr;
  std::string why;
  int32_t code = capture.begin();
  if (code == 0) {
    try {
      launch(inputs, layers);
      code = capture.end(&graph);
    } catch (const Error& error) {
      why = error.what();
      code = capture.end(nullptr);
    }
  }
  if (graph) return graph;
  if (kernels::is_lasting(code)) kernels::throw_cuda_error(code, "a capture failed", library.error_text(code));
  if (++refusals_ == kMostRefusals)
    log(LogLevel::kWarn,
        "passes run without CUDA graphs, which is slower: " + (why.empty() ? library.error_text(code) : why));
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
    drop();  // the graphs read the memory that is replaced here
    input_ = at::empty({2 * piece.numel()}, input_.options());
  }
  input_.narrow(0, 0, piece.numel()).copy_(piece, /*non_blocking=*/true);
  const auto splits = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(rows.paged().num_splits())));
  const Shape shape(count, static_cast<int32_t>(rows.paged().tiles().size()), splits, rows.may_rest(), layers);
  if (const auto found = graphs_.find(shape); found != graphs_.end()) {
    const kernels::CudaLibrary& library = layers_.kernels().library();
    const int32_t code = library.launch_graph(layers_.kernels().device(), found->second.graph);
    found->second.used = ++passes_;
    if (code != 0) kernels::throw_cuda_error(code, "a graph could not be launched", library.error_text(code));
    return result;
  }
  CudaPassInputs inputs = rows.inputs(input_, sums_);
  inputs.paged.num_splits = splits;
  launch(inputs, layers);
  if (graphs_.size() == most_) drop_oldest();
  if (void* const graph = capture(inputs, layers)) graphs_[shape] = {graph, ++passes_};
  return result;
}

}  // namespace specdec::model
