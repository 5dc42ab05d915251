// Returns the state of an optimizer as whole tensors, named as in a checkpoint.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "distill/gradient/optimizer.h"

namespace specdec::testing {

// Returns the tensors. If ranks share the state, every rank must call state_of(); only rank 0 gets the tensors, the
// other ranks get an empty vector.
inline std::vector<distill::NamedTensor> state_of(const distill::AdamW& optimizer) {
  std::vector<at::Tensor> pieces;
  optimizer.visit_state([&](const at::Tensor& piece) { pieces.push_back(piece.clone()); });
  std::vector<distill::NamedTensor> out;
  if (pieces.empty()) return out;
  const at::Tensor all = at::cat(pieces);
  int64_t begin = 0;
  for (const TensorShape& t : optimizer.layout()) {
    const int64_t count = c10::multiply_integers(t.shape);
    out.push_back({t.name, all.slice(0, begin, begin + count).view(t.shape)});
    begin += count;
  }
  EXPECT_EQ(begin, all.numel());
  return out;
}

inline void load_state(distill::AdamW& optimizer, const std::vector<distill::NamedTensor>& state) {
  std::map<std::string, at::Tensor> found;
  std::vector<std::string> names;
  for (const distill::NamedTensor& t : state) found[t.name] = t.tensor, names.push_back(t.name);
  optimizer.load(names, [&](const std::string& name) { return found.at(name); });
}

}  // namespace specdec::testing
