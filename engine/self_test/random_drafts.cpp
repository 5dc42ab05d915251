#include "engine/self_test/random_drafts.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/decode/sampling/sampler.h"

namespace specdec::self_test {

namespace {

std::vector<float> random_row(PhiloxStream& random, size_t vocab, const std::vector<float>* like = nullptr) {
  std::vector<float> row(vocab);
  double total = 0;
  for (size_t i = 0; i < vocab; ++i) {
    const double noise = std::exp(3 * random.uniform());
    row[i] = static_cast<float>(like                              ? static_cast<double>((*like)[i]) * noise
                                : i > 0 && random.uniform() < 0.4 ? 0.0
                                                                  : noise);
    total += static_cast<double>(row[i]);
  }
  for (float& x : row) x = static_cast<float>(static_cast<double>(x) / total);
  return row;
}

}  // namespace

std::vector<float> random_logits(uint64_t number, size_t vocab, bool ties) {
  PhiloxStream random(5, number);
  std::vector<float> row(vocab);
  for (float& x : row) {
    x = static_cast<float>(10 * random.uniform() - 5);
    if (ties) x = std::round(x);
    if (random.uniform() < 0.1) x = kMasked;
  }
  row[random.below(vocab)] = 2;
  return row;
}

decode::VerifyInput RandomDraft::input() const {
  decode::VerifyInput in;
  in.drafted = tokens;
  in.p.assign(p.begin(), p.end());
  in.q.assign(q.begin(), q.end());
  in.position = position;
  in.parents = parents;
  return in;
}

RandomDraft random_draft(uint64_t number, bool tree, size_t vocab) {
  PhiloxStream random(99, number);
  RandomDraft out;
  const size_t some = 2 + random.below(200), count = random.below(6);
  if (vocab == 0) vocab = some;
  out.position = static_cast<int64_t>(random.below(1000));
  out.p.push_back(random_row(random, vocab));
  for (size_t i = 0; i < count; ++i) {
    const int32_t parent = tree ? static_cast<int32_t>(random.below(i + 1)) - 1 : static_cast<int32_t>(i) - 1;
    if (tree && i > 0 && parent < out.parents.back()) break;  // nodes must be ordered by level
    std::vector<float> left = random_row(random, vocab, &out.p[static_cast<size_t>(parent + 1)]);
    for (size_t j = 0; j < i && tree; ++j)
      if (out.parents[j] == parent) left = out.q[j];
    out.q.push_back(left);
    for (size_t j = 0; j < i && tree; ++j)
      if (out.parents[j] == parent) left[static_cast<size_t>(out.tokens[j])] = 0;
    double mass = 0;
    for (const float x : left) mass += static_cast<double>(x);
    if (!(mass > 1e-3)) {
      out.q.pop_back();
      break;
    }
    out.tokens.push_back(decode::draw(left, random.uniform()));
    if (tree) out.parents.push_back(parent);
    out.p.push_back(random_row(random, vocab));
  }
  return out;
}

kernels::DeviceRule device_rule(VerifyRule rule, bool tree) {
  using kernels::DeviceRule;
  switch (rule) {
    case VerifyRule::kToken:
      return tree ? DeviceRule::kTokenTree : DeviceRule::kTokenChain;
    case VerifyRule::kBlock:
      return tree ? DeviceRule::kBlockTree : DeviceRule::kBlockChain;
    case VerifyRule::kTarget:
      return DeviceRule::kTarget;
    case VerifyRule::kCoupled:
      return DeviceRule::kCoupled;
  }
  throw Error(ErrorKind::kInternal, "unknown verification rule");
}

std::vector<int32_t> VerifyArrays::likeliest() const {
  std::vector<int32_t> out;
  for (size_t at = 0; at < p.size(); at += vocab)
    out.push_back(static_cast<int32_t>(std::max_element(p.begin() + static_cast<std::ptrdiff_t>(at),
                                                        p.begin() + static_cast<std::ptrdiff_t>(at + vocab)) -
                                       p.begin() - static_cast<std::ptrdiff_t>(at)));
  return out;
}

void VerifyArrays::add(const decode::VerifyInput& input, VerifyRule rule, uint64_t seed) {
  vocab = input.p[0].size();
  kernels::VerifyTask task = {};
  task.rule = device_rule(rule, !input.parents.empty());
  task.first = static_cast<int32_t>(nodes.size());
  task.count = static_cast<int32_t>(input.drafted.size());
  task.p_row = static_cast<int32_t>(p.size() / vocab);
  task.position = input.position;
  task.seed = seed;
  tasks.push_back(task);
  for (const auto& row : input.p) p.insert(p.end(), row.begin(), row.end());
  for (size_t i = 0; i < input.drafted.size(); ++i) {
    const int32_t parent = input.parents.empty() ? static_cast<int32_t>(i) - 1 : input.parents[i],
                  next = static_cast<int32_t>(q.size() / vocab);
    int32_t row = next;
    for (size_t j = 0; j < i; ++j)  // siblings share a row
      if (!input.parents.empty() && input.parents[j] == parent) {
        row = nodes[static_cast<size_t>(task.first) + j].q_row;
        break;
      }
    // Overlap and ratio are computed only for the first child of a node; its siblings get −1.
    nodes.push_back({input.drafted[i], parent, row, row == next ? task.p_row + parent + 1 : -1});
    if (!input.q.empty() && row == next) q.insert(q.end(), input.q[i].begin(), input.q[i].end());
  }
}

}  // namespace specdec::self_test
