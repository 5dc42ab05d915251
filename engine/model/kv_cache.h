// Keys and values of one sequence for every layer: contiguous, grown in blocks, truncated by changing a length.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
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
  // The first `length` tokens and, in this order, those at `places` in [length, length()), rising; throws likewise.
  void keep(int64_t length, std::span<const int64_t> places);
  KvCache prefix(int64_t length) const;  // the first tokens in memory of their own, with all that is known of them; throws likewise
  void reserve(int64_t capacity);      // tokens; keeps the content
  // Writes rows at [length, length + T) of one layer and returns views [G, length + T, D] of keys and values.
  std::pair<at::Tensor, at::Tensor> append(int64_t layer, const at::Tensor& k, const at::Tensor& v);  // [T, G, D] each
  void commit(int64_t num_tokens);     // after the last layer: length += num_tokens
  // For texts whose scaling depends on their length (rope.h): the scaling of the content, and the tokens at [length, length + T), which
  // are kept so that the content can be computed anew.
  int64_t stretch() const { return stretch_; }
  void set_stretch(int64_t stretch);  // throws Error(kInternal) unless the cache is empty or has this one
  void record(std::span<const int32_t> tokens, std::span<const int64_t> positions);
  std::span<const int32_t> tokens() const { return std::span(tokens_).first(static_cast<size_t>(length_)); }
  std::span<const int64_t> positions() const { return std::span(positions_).first(static_cast<size_t>(length_)); }
  int64_t bytes() const;
  static int64_t bytes_per_token(const DecoderConfig& config, at::ScalarType dtype);

 private:
  std::vector<at::Tensor> k_, v_;  // per layer [G, capacity, D]
  std::vector<int32_t> tokens_;
  std::vector<int64_t> positions_;
  int64_t length_ = 0, capacity_ = 0, stretch_ = 0;
};

}  // namespace specdec::model
