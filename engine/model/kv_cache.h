// Keys and values of one sequence for every layer: contiguous, grown in blocks, truncated by changing a length.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/model/config.h"

namespace specdec::model {

class KvCache {
 public:
  KvCache(const DecoderConfig& config, at::Device device, at::ScalarType dtype);

  int64_t length() const { return length_; }
  int64_t capacity() const { return capacity_; }
  const at::Tensor& keys(int64_t layer) const { return k_[static_cast<size_t>(layer)]; }      // [G, capacity, D]
  const at::Tensor& values(int64_t layer) const { return v_[static_cast<size_t>(layer)]; }
  void truncate(int64_t length);       // length <= length(); throws Error(kInternal) otherwise
  void reserve(int64_t capacity);      // tokens; keeps the content
  // Writes rows at [length, length + T) of one layer and returns views [G, length + T, D] of keys and values.
  std::pair<at::Tensor, at::Tensor> append(int64_t layer, const at::Tensor& k, const at::Tensor& v);  // [T, G, D] each
  void commit(int64_t num_tokens);     // after the last layer: length += num_tokens
  int64_t bytes() const;
  static int64_t bytes_per_token(const DecoderConfig& config, at::ScalarType dtype);

 private:
  std::vector<at::Tensor> k_, v_;  // per layer [G, capacity, D]
  int64_t length_ = 0, capacity_ = 0;
};

}  // namespace specdec::model
