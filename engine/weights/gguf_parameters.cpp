// Reads the parameters of a decoder from a GGUF file (base/gguf). Matrices stay in the file's blocks for products on a
// CPU, or are dequantised.
#include <ATen/Parallel.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/gguf/blocks.h"
#include "base/gguf/model_files.h"
#include "base/progress.h"
#include "engine/kernels/block_quantised.h"
#include "engine/kernels/team.h"
#include "engine/weights/parameter_source.h"
#include "engine/weights/tensor_reader.h"

namespace specdec::model {

namespace {

class GgufParameters final : public FileParameters {
 public:
  GgufParameters(const SafetensorsDirectory& files, const DecoderConfig& config, const Reading& reading)
      : files_(files), config_(config), read_as_(reading.read_as), keeps_(reading.keep && reading.device.is_cpu()) {
    for (const std::string& name : files.names()) unread_.insert(name);
  }

  std::optional<kernels::cpu::BlockKind> block_kind(const Parameter& p) override {
    if (!keeps_ || p.shape.size() != 2 || !files_.contains(p.stored)) return {};
    return kernels::block_kind(files_.entry(p.stored).dtype);
  }
  at::Tensor packed_blocks(const Parameter& p, const at::Tensor& memory) override {
    const std::vector<uint8_t> rows = read_rows(p);
    at::Tensor packed = kernels::pack_blocks(*block_kind(p), rows.data(), order_of(p), p.shape[0], p.shape[1], memory);
    if (!packed.defined())
      throw Error(ErrorKind::kModel, where(p) + " holds NaN or infinite values: its scales are not finite");
    return packed;
  }
  at::Tensor whole(const Parameter& p) override {
    const std::vector<uint8_t> rows = read_rows(p);
    const gguf::Placed& placed = files_.placed(p.stored);
    const std::vector<int64_t> order = order_of(p);
    const int64_t count = p.shape.size() > 1 || !order.empty() ? p.shape[0] : 1,
                  width = c10::multiply_integers(p.shape) / count,
                  row_bytes = static_cast<int64_t>(rows.size()) / count;
    at::Tensor wide = at::empty(p.shape, at::kFloat);
    const int64_t threads = std::min<int64_t>(at::get_num_threads(), 1 + wide.numel() / 65536);
    kernels::run_team(static_cast<int>(threads), [&](const kernels::Member& member) {
      const auto [begin, end] = member.part(count);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t from = order.empty() ? i : order[static_cast<size_t>(i)];
        gguf::dequantise(*placed.tensor->type,
                         std::as_bytes(std::span(rows).subspan(static_cast<size_t>(from * row_bytes),
                                                               static_cast<size_t>(row_bytes))),
                         {wide.data_ptr<float>() + i * width, static_cast<size_t>(width)});
      }
    });
    if (placed.place.minus != 0) wide -= placed.place.minus;
    return converted(wide, read_as_, where(p));
  }

  // Reads matrices in pieces, so that a large embedding is never in memory in fp32 as a whole.
  void put(const Parameter& p, const Slice& slice, const at::Tensor& out) override {
    if (slice.dim != 0 || p.shape.size() != 2 || !files_.contains(p.stored) || !order_of(p).empty())
      return ParameterSource::put(p, slice, out);
    const int64_t step = std::max<int64_t>(1, (int64_t{4} << 20) / p.shape[1]);
    for (int64_t row = 0; row < slice.share.length; row += step) {
      Parameter piece = p;
      piece.row += slice.share.begin + row;
      piece.shape[0] = std::min(step, slice.share.length - row);
      out.narrow(0, row, piece.shape[0]).copy_(whole(piece));
    }
  }

  void check_all_read() override {
    if (!unread_.empty())
      throw Error(ErrorKind::kModel, std::to_string(unread_.size()) + " tensors are not part of this " +
                                         config_.model_type + " model as the file describes it, the first is " +
                                         *unread_.begin());
  }
  bool narrowed_some() const override { return false; }  // norms are stored in fp32 whatever the model's dtype was
  int64_t widened() const override { return 0; }

 private:
  std::string where(const Parameter& p) const {
    return files_.file_of(p.stored).path().string() + ": tensor " + p.stored;
  }

  // Returns the bytes of the rows of a parameter, in the file's order.
  std::vector<uint8_t> read_rows(const Parameter& p) {
    if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal while reading weights");
    if (!files_.contains(p.stored)) throw Error(ErrorKind::kModel, "tensor " + p.stored + " is missing");
    const TensorEntry& entry = files_.entry(p.stored);
    std::vector<int64_t> shape = p.shape;
    shape[0] = p.stored_rows;
    if (entry.shape != shape)
      throw Error(ErrorKind::kModel, where(p) + " has shape " + c10::str(at::IntArrayRef(entry.shape)) +
                                         ", the file's metadata asks for " + c10::str(at::IntArrayRef(shape)));
    if (p.shape.size() == 1 && files_.placed(p.stored).tensor->type->block_values != 1)
      throw Error(ErrorKind::kModel, where(p) + " is stored as " + entry.dtype +
                                         ", expected F32, F16 or BF16 for a tensor of one dimension");
    unread_.erase(p.stored);
    const uint64_t row = entry.bytes / static_cast<uint64_t>(p.stored_rows);
    std::vector<uint8_t> bytes(static_cast<size_t>(row) * static_cast<size_t>(p.shape[0]));
    files_.file_of(p.stored).read(entry.offset + row * static_cast<uint64_t>(p.row),
                                  std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  // Returns, for each row of the parameter, its row in the file (gguf::Place); empty if the rows keep their order.
  std::vector<int64_t> order_of(const Parameter& p) const {
    const int64_t heads = files_.placed(p.stored).place.permuted_heads, n = p.shape[0];
    if (heads == 0) return {};
    const int64_t d = n / heads, half = d / 2;
    if (heads * half * 2 != n)
      throw Error(ErrorKind::kModel, where(p) + " has " + std::to_string(n) + " rows, which are not " +
                                         std::to_string(heads) + " heads of an even size");
    std::vector<int64_t> order(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      const int64_t in = i % d;
      order[static_cast<size_t>(i)] = i - in + 2 * (in % half) + in / half;
    }
    return order;
  }

  const SafetensorsDirectory& files_;
  const DecoderConfig& config_;
  at::ScalarType read_as_;
  bool keeps_;
  std::set<std::string> unread_;
};

}  // namespace

std::unique_ptr<FileParameters> make_gguf_parameters(const SafetensorsDirectory& files, const DecoderConfig& config,
                                                     const Reading& reading) {
  return std::make_unique<GgufParameters>(files, config, reading);
}

}  // namespace specdec::model
