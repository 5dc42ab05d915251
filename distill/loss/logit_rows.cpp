#include "distill/loss/logit_rows.h"

#include <ATen/ops/_to_copy.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "distill/loss/loss_rows.h"

namespace specdec::distill {

LogitRows::LogitRows(const at::Tensor& logits) : logits_(logits.detach().contiguous()) {
  const at::ScalarType type = logits_.scalar_type();
  if (type != at::kFloat && type != at::kBFloat16 && type != at::kHalf)
    throw Error(ErrorKind::kInternal, "logits: expected fp32, bf16 or fp16");
}

const float* LogitRows::row(int64_t index, float* room) const {
  const int64_t n = width(), at = index * n;
  switch (logits_.scalar_type()) {
    case at::kFloat:
      return logits_.const_data_ptr<float>() + at;
    case at::kBFloat16:
      widen_bf16(static_cast<const uint16_t*>(logits_.const_data_ptr()) + at, n, room);
      return room;
    default: {
      const auto* from = logits_.const_data_ptr<at::Half>() + at;
      for (int64_t i = 0; i < n; ++i) room[i] = static_cast<float>(from[i]);
      return room;
    }
  }
}

float* RowWriter::begin(int64_t index, float* room) const {
  return out_.scalar_type() == at::kFloat ? out_.mutable_data_ptr<float>() + index * out_.size(1) : room;
}

void RowWriter::put(int64_t index, const float* row) const {
  const int64_t n = out_.size(1), at = index * n;
  if (out_.scalar_type() == at::kBFloat16) narrow_bf16(row, n, static_cast<uint16_t*>(out_.mutable_data_ptr()) + at);
  if (out_.scalar_type() == at::kHalf) std::copy_n(row, n, out_.mutable_data_ptr<at::Half>() + at);
}

void RowWriter::zero(int64_t index) const {
  const auto bytes = static_cast<size_t>(out_.size(1)) * out_.element_size();
  std::memset(static_cast<char*>(out_.mutable_data_ptr()) + static_cast<size_t>(index) * bytes, 0, bytes);
}

}  // namespace specdec::distill
