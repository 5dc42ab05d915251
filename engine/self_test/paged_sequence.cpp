#include "engine/self_test/paged_sequence.h"

#include <memory>

namespace specdec::self_test {

namespace {

void append(Values& to, const Values& from) { to.insert(to.end(), from.begin(), from.end()); }

}  // namespace

Mask causal_mask(size_t rows) {
  Mask mask(rows, std::vector<bool>(rows));
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j <= i; ++j) mask[i][j] = true;
  return mask;
}

Mask tree_mask(const std::vector<int>& parents) {
  Mask mask(parents.size(), std::vector<bool>(parents.size()));
  for (size_t i = 0; i < parents.size(); ++i)
    for (int node = static_cast<int>(i); node >= 0; node = parents[static_cast<size_t>(node)])
      mask[i][static_cast<size_t>(node)] = true;
  return mask;
}

PagedSequence::PagedSequence(const PagedShape& shape, size_t slots, uint64_t stream) : shape_(shape), slots_(slots) {
  const size_t width = shape.kv_heads * shape.d;
  for (uint64_t side = 0; side < 2; ++side) values_[side] = random_values(shape.dtype, slots * width, stream + side);
  queries_ = random_values(shape.dtype, slots * shape.heads * shape.d, stream + 2, 2);
}

std::vector<Values> PagedSequence::blocks(size_t length) const {
  std::vector<Values> out(num_blocks(), Values(block_numbers(), kUnwritten));
  for_each_cached(length, [&](size_t block, size_t place, double value) { out[block][place] = value; });
  return out;
}

Values PagedSequence::expected(size_t slot, size_t length, const std::vector<size_t>& also) const {
  std::vector<size_t> seen;
  for (size_t i = 0; i < length; ++i) seen.push_back(i);
  seen.insert(seen.end(), also.begin(), also.end());
  if (shape_.window > 0 && seen.size() > static_cast<size_t>(shape_.window))
    seen.erase(seen.begin(), seen.end() - shape_.window);
  Values out;
  for (size_t head = 0; head < shape_.heads; ++head) {
    Values keys, values;
    for (const size_t s : seen)
      for (size_t i = 0; i < shape_.d; ++i) {
        keys.push_back(value(0, s, head / shape_.times(), i));
        values.push_back(value(1, s, head / shape_.times(), i));
      }
    const auto q = queries_.begin() + static_cast<std::ptrdiff_t>((slot * shape_.heads + head) * shape_.d);
    append(out, kernels::twins::attention({q, q + static_cast<std::ptrdiff_t>(shape_.d)}, keys, values, shape_.scale,
                                          shape_.soft_cap));
  }
  return out;
}

Values PagedSequence::rows_of(const Values& all, size_t heads, size_t slot, size_t count) const {
  const auto at = [&](size_t row) { return all.begin() + static_cast<std::ptrdiff_t>(row * heads * shape_.d); };
  return {at(slot), at(slot + count)};
}

PagedInputs paged_inputs(const PagedShape& shape, const std::vector<PagedPart>& parts) {
  PagedInputs out{
      kernels::PagedRows(static_cast<int64_t>(shape.heads), static_cast<int64_t>(shape.kv_heads)), {}, {}, {}};
  for (const PagedPart& part : parts) {
    const size_t rows = part.rows();
    const auto flat = std::make_unique<bool[]>(rows * rows);
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < rows; ++j) flat[i * rows + j] = part.mask[i][j];
    const bool plain = part.mask == causal_mask(rows);
    out.rows.add(part.blocks, static_cast<int64_t>(part.length), static_cast<int64_t>(rows),
                 plain ? std::span<const bool>() : std::span<const bool>(flat.get(), rows * rows));
    append(out.q, part.sequence->queries(part.length, rows));
    append(out.k, part.sequence->side(0, part.length, rows));
    append(out.v, part.sequence->side(1, part.length, rows));
  }
  return out;
}

Values expected_attention(const std::vector<PagedPart>& parts) {
  Values out;
  for (const PagedPart& part : parts)
    for (size_t i = 0; i < part.rows(); ++i) {
      std::vector<size_t> also;
      for (size_t j = 0; j < part.rows(); ++j)
        if (part.mask[i][j]) also.push_back(part.length + j);
      append(out, part.sequence->expected(part.length + i, part.length, also));
    }
  return out;
}

}  // namespace specdec::self_test
