// Reads tensors of checkpoints into the memory of a device, piece by piece. Each piece is checked and converted while
// it is in the CPU's caches, so every number is read from memory once. Copies to a GPU go through two pinned buffers:
// while the device copies from one buffer, the next piece is read into the other.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "base/safetensors.h"

namespace specdec::model {

// Converts a tensor on the CPU to `dtype`. `what` names the tensor in messages. Throws Error(kModel) if a value is not
// finite or does not fit.
at::Tensor converted(const at::Tensor& tensor, at::ScalarType dtype, const std::string& what);

// A part of a stored tensor [R, …]: rows [row, row + rows), and of each row the values [column, column + columns).
struct StoredPart {
  int64_t row = 0, rows = 0, column = 0, columns = 0;
};

class TensorReader {
 public:
  struct Options {
    int64_t piece_bytes = int64_t{4} << 20;
    // Whether pieces go through buffers, as for a GPU, even if they could be read directly into the output (for tests).
    bool staged = false;
  };
  // `files` must outlive the reader.
  TensorReader(const SafetensorsDirectory& files, at::Device device) : TensorReader(files, device, Options()) {}
  TensorReader(const SafetensorsDirectory& files, at::Device device, const Options& options);

  // Reads a part of a tensor that is stored as F32, BF16 or F16 with this shape, and converts it to the dtype of `out`,
  // a contiguous tensor on the device with part.rows · part.columns values. From the file, reads only the rows of the
  // part, but with all their columns. Throws Error(kModel) if the tensor is missing or has another shape or dtype, or
  // if a value of the part is not finite or does not fit the dtype. On a GPU the last copies may still run on the
  // current stream when read() returns.
  void read(const std::string& name, at::IntArrayRef shape, const StoredPart& part, const at::Tensor& out);
  // Reads a whole tensor that is stored as F32, BF16 or F16, and returns it in `dtype` on the device.
  at::Tensor read(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype);

  int64_t bytes_read() const { return bytes_read_; }

 private:
  struct Stage {
    at::Tensor bytes;
    std::optional<c10::Event> sent;
  };
  at::Tensor stage(at::IntArrayRef shape, at::ScalarType dtype);
  void send(const at::Tensor& piece, const at::Tensor& out);

  const SafetensorsDirectory& files_;
  at::Device device_;
  Options options_;
  std::array<Stage, 2> stages_;
  size_t current_ = 0;
  at::Tensor unconverted_;  // buffer for a piece in its stored dtype
  int64_t bytes_read_ = 0;
};

}  // namespace specdec::model
