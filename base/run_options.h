// Options shared by all commands that run a model (docs/contract.md: Commands). Plain data; cli fills them and
// validate() checks them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace specdec {

struct DeviceOptions {
  std::string device = "auto";  // auto | cpu | cuda | cuda:<i>
  // auto (the checkpoint's own) | fp32 | bf16 | fp16 | int8 (only for decoding: weights are int8, norms and KV caches
  // keep a wider dtype)
  std::string dtype = "auto";
  std::string draft_dtype = {};  // dtype of the draft; empty = same as dtype
  uint64_t seed = 0;
  int threads = 0;     // 0 = all cores
  bool exact = false;  // on a GPU, logits do not depend on the number of tokens in a pass (engine/weights/weights.h)
  const std::string& dtype_of_draft() const { return draft_dtype.empty() ? dtype : draft_dtype; }
};

// The sampling distribution p is the softmax of logits / temperature, restricted by top-k, top-p and min-p in this
// order, and renormalised after each. Temperature 0 = greedy (p is one-hot).
struct SamplingOptions {
  double temperature = 1.0;  // [0, 10]
  int64_t top_k = 0;         // only the top_k likeliest tokens may be drawn; 0 = all
  double top_p = 1.0;        // (0, 1]
  double min_p = 0.0;        // [0, 1)
  bool greedy() const { return temperature == 0.0; }
};

enum class VerifyRule { kToken, kBlock, kTarget, kCoupled };  // explained in engine/decode/sampling/verifier.h

struct SpeculationOptions {
  int k = -1;     // draft tokens per step; -1 = auto (the controller chooses K >= 0); 0 = plain decoding
  int max_k = 8;  // upper bound of K if k is -1 (auto)
  VerifyRule verify = VerifyRule::kToken;
  // Shape of the draft tree: the number of children of every node, by depth; each in [1, 8], at most 64 nodes in all;
  // empty = a chain of K.
  std::vector<int> tree = {};
  bool suffix = false;  // also drafts continuations found earlier in the text (engine/decode/control/suffix_drafter.h)
};

// Throw Error(kUsage) naming the flag and its range if a value is not allowed.
void validate(const SamplingOptions& options);
void validate(const SpeculationOptions& options);
void validate(const DeviceOptions& options);
VerifyRule parse_verify_rule(const std::string& name);  // parses "token" | "block" | "target" | "coupled"
std::vector<int> parse_tree(const std::string& text);   // parses "2,2,1"
// Returns the number of tree nodes in the first `depth` levels. An empty `tree` is a chain, which has `depth` nodes.
int tree_nodes(std::span<const int> tree, int depth);
std::string to_string(VerifyRule rule);

}  // namespace specdec
