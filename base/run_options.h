// Options that every model-running command shares (contract: Commands). Plain data, filled by cli, checked by
// validate().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace specdec {

struct DeviceOptions {
  std::string device = "auto";   // auto | cpu | cuda | cuda:<i>
  std::string dtype = "auto";    // auto (the checkpoint's own) | fp32 | bf16 | fp16 | int8 (weights of decoding; norms
                                 // and caches stay wide)
  std::string draft_dtype = {};  // the same of the draft; empty: as dtype
  uint64_t seed = 0;
  int threads = 0;  // 0: all cores
  const std::string& dtype_of_draft() const { return draft_dtype.empty() ? dtype : draft_dtype; }
};

// p is the softmax of logits / temperature, then top-k, top-p, min-p, each renormalised. temperature 0 = greedy
// (one-hot).
struct SamplingOptions {
  double temperature = 1.0;  // [0, 10]
  int64_t top_k = 0;         // 0 = off
  double top_p = 1.0;        // (0, 1]
  double min_p = 0.0;        // [0, 1)
  bool greedy() const { return temperature == 0.0; }
};

enum class VerifyRule { kToken, kBlock, kTarget, kCoupled };  // engine/decode/verifier.h

struct SpeculationOptions {
  int k = -1;     // draft tokens a step; -1 = auto (the controller chooses, 0 included); 0 = plain
  int max_k = 8;  // upper bound for auto
  VerifyRule verify = VerifyRule::kToken;
  std::vector<int> tree = {};  // children of every node by depth, each in [1, 8], at most 64 nodes; empty: a chain of K
  bool suffix = false;         // also drafts from the text itself (engine/decode/suffix_drafter.h)
};

// Throw Error(kUsage) naming the flag and its range.
void validate(const SamplingOptions& options);
void validate(const SpeculationOptions& options);
void validate(const DeviceOptions& options);
VerifyRule parse_verify_rule(const std::string& name);    // "token" | "block" | "target" | "coupled"
std::vector<int> parse_tree(const std::string& text);     // "2,2,1"
int tree_nodes(const std::vector<int>& tree, int depth);  // of the first `depth` levels; of a chain `depth`
std::string to_string(VerifyRule rule);

}  // namespace specdec
