// Stores the cosines and sines of the rotary embedding by position, for use by later passes. Each thread has only a few
// tables, because it runs few models (target, draft) with few rope settings each.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/config/config.h"

namespace specdec::model {

class AngleTable {
 public:
  AngleTable(const RopeConfig& rope, int64_t head_dim, int64_t rope_rescale);

  bool fits(const RopeConfig& rope, int64_t head_dim, int64_t rope_rescale) const {
    return rope_rescale_ == rope_rescale && head_dim_ == head_dim && rope_ == rope;
  }
  int64_t half() const { return half_; }  // R/2 (rope.h)
  // Writes the half() cosines and half() sines of a position, with the same values as rope_angles().
  void copy(int64_t position, float* cos, float* sin);

 private:
  void compute(int64_t position, float* cos, float* sin) const;

  RopeConfig rope_;
  int64_t head_dim_, rope_rescale_, half_;
  std::vector<float> frequencies_, table_;
};

// Returns this thread's table for these settings. It is valid until the next call on the same thread.
AngleTable& angle_table(const RopeConfig& rope, int64_t head_dim, int64_t rope_rescale);

}  // namespace specdec::model
