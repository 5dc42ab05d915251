#include "engine/forward/angle_table.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "engine/config/rope.h"

namespace specdec::model {

AngleTable::AngleTable(const RopeConfig& rope, int64_t head_dim, int64_t rope_rescale)
    : rope_(rope), head_dim_(head_dim), rope_rescale_(rope_rescale), half_(rotary_dim(rope, head_dim) / 2) {
  const at::Tensor frequencies = inverse_frequencies(rope, head_dim, rope_rescale).contiguous();
  const float* data = frequencies.const_data_ptr<float>();
  frequencies_.assign(data, data + half_);
}

void AngleTable::copy(int64_t position, float* cos, float* sin) {
  constexpr int64_t kKept = 1 << 16;
  if (position < 0 || position >= kKept) return compute(position, cos, sin);
  for (int64_t next = static_cast<int64_t>(table_.size()) / (2 * half_); next <= position; ++next) {
    table_.resize(table_.size() + static_cast<size_t>(2 * half_));
    compute(next, table_.data() + 2 * half_ * next, table_.data() + 2 * half_ * next + half_);
  }
  const float* row = table_.data() + 2 * half_ * position;
  std::copy(row, row + half_, cos);
  std::copy(row + half_, row + 2 * half_, sin);
}

void AngleTable::compute(int64_t position, float* cos, float* sin) const {
  const auto factor = static_cast<float>(rope_.attention_factor);
  for (int64_t i = 0; i < half_; ++i) {
    const float angle = static_cast<float>(position) * frequencies_[static_cast<size_t>(i)];
    cos[i] = std::cos(angle) * factor;
    sin[i] = std::sin(angle) * factor;
  }
}

AngleTable& angle_table(const RopeConfig& rope, int64_t head_dim, int64_t rope_rescale) {
  constexpr size_t kTables = 8;
  thread_local std::vector<std::unique_ptr<AngleTable>> tables;  // ordered by last use, oldest first
  const auto found = std::find_if(tables.begin(), tables.end(),
                                  [&](const auto& table) { return table->fits(rope, head_dim, rope_rescale); });
  if (found != tables.end()) {
    std::rotate(found, found + 1, tables.end());
  } else {
    if (tables.size() == kTables) tables.erase(tables.begin());
    tables.push_back(std::make_unique<AngleTable>(rope, head_dim, rope_rescale));
  }
  return *tables.back();
}

}  // namespace specdec::model
