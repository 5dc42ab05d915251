// The cases of the self-test, grouped by kernels. Each function appends to `cases`.
#pragma once

#include <initializer_list>
#include <string>

#include "engine/self_test/self_test.h"

namespace specdec::self_test {

using Cases = std::vector<KernelCase>;

inline constexpr float kNormEps = 1e-5f;

void add_row_cases(Cases& cases, Extent extent);        // rms_norm, silu_mul, rope, gather_rows
void add_product_cases(Cases& cases, Extent extent);    // rows_product, dequantise
void add_attention_cases(Cases& cases, Extent extent);  // prepare_heads, paged_attention, move_slots
void add_token_cases(Cases& cases, Extent extent);      // sample, draft, verify

// Returns the sizes as text, such as "5 x 64 x 3".
inline std::string shape_text(std::initializer_list<size_t> sizes) {
  std::string out;
  for (const size_t size : sizes) out += (out.empty() ? "" : " x ") + std::to_string(size);
  return out;
}

}  // namespace specdec::self_test
