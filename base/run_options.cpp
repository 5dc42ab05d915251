#include "base/run_options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/sampling_ranges.h"

namespace specdec {

namespace {

template <class T>
[[noreturn]] void refuse(const char* flag, const std::string& expected, const T& found) {
  std::ostringstream text;
  text << flag << ": expected " << expected << ", found " << found;
  throw Error(ErrorKind::kUsage, text.str());
}

bool is_device(const std::string& name) {
  if (name == "auto" || name == "cpu" || name == "cuda") return true;
  if (name.rfind("cuda:", 0) != 0 || name.size() < 6 || name.size() > 8) return false;
  return std::all_of(name.begin() + 5, name.end(), [](unsigned char c) { return std::isdigit(c); });
}

}  // namespace

void validate(const SamplingOptions& o) {
  if (!kTemperatures.contains(o.temperature)) refuse("--temperature", kTemperatures.text(), o.temperature);
  if (o.top_k < 0) refuse("--top-k", "an integer >= 0 (0 = off)", o.top_k);
  if (!kTopPs.contains(o.top_p)) refuse("--top-p", kTopPs.text(), o.top_p);
  if (!kMinPs.contains(o.min_p)) refuse("--min-p", kMinPs.text(), o.min_p);
}

void validate(const SpeculationOptions& o) {
  if (o.k < -1 || o.k > 32) refuse("--k", "auto or an integer in [0, 32]", o.k);
  if (o.max_k < 0 || o.max_k > 32) refuse("--max-k", "an integer in [0, 32]", o.max_k);
}

void validate(const DeviceOptions& o) {
  if (!is_device(o.device)) refuse("--device", "auto, cpu, cuda or cuda:<index>", "'" + o.device + "'");
  const auto check_dtype = [](const char* flag, const std::string& dtype) {
    const auto known = {"auto", "fp32", "bf16", "fp16", "int8"};
    if (std::find(known.begin(), known.end(), dtype) == known.end())
      refuse(flag, "auto, fp32, bf16, fp16 or int8", "'" + dtype + "'");
  };
  check_dtype("--dtype", o.dtype);
  check_dtype("--draft-dtype", o.dtype_of_draft());
  if (o.threads < 0 || o.threads > 4096) refuse("--threads", "an integer in [0, 4096] (0 = all cores)", o.threads);
}

constexpr std::pair<const char*, VerifyRule> kVerifyRules[] = {{"token", VerifyRule::kToken},
                                                               {"block", VerifyRule::kBlock},
                                                               {"target", VerifyRule::kTarget},
                                                               {"coupled", VerifyRule::kCoupled}};

VerifyRule parse_verify_rule(const std::string& name) {
  for (const auto& [known, rule] : kVerifyRules)
    if (name == known) return rule;
  refuse("--verify", "token, block, target or coupled", "'" + name + "'");
}

std::string to_string(VerifyRule rule) {
  for (const auto& [name, known] : kVerifyRules)
    if (rule == known) return name;
  throw Error(ErrorKind::kInternal, "unknown verification rule");
}

int tree_nodes(std::span<const int> tree, int depth) {
  if (tree.empty()) return depth;
  int nodes = 0, width = 1;
  for (size_t d = 0; d < std::min(tree.size(), static_cast<size_t>(std::max(depth, 0))); ++d) nodes += width *= tree[d];
  return nodes;
}

std::vector<int> parse_tree(const std::string& text) {
  std::vector<int> tree;
  const char *at = text.data(), *end = at + text.size();
  const auto fail = [&] {
    refuse("--tree", "children by depth such as 2,2,1, each from 1 to 8, at most 64 nodes", "'" + text + "'");
  };
  while (true) {
    int width = 0;
    const auto [next, error] = std::from_chars(at, end, width);
    if (error != std::errc() || width < 1 || width > 8 || tree.size() == 32) fail();
    tree.push_back(width);
    if (tree_nodes(tree, static_cast<int>(tree.size())) > 64) fail();
    if (next == end) return tree;
    if (*next != ',') fail();
    at = next + 1;
  }
}

}  // namespace specdec
