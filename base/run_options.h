// Options that every model-running command shares (contract: Commands). Plain data, filled by cli, checked by validate().
#pragma once

#include <cstdint>
#include <string>

namespace specdec {

struct DeviceOptions {
  std::string device = "auto";  // auto | cpu | cuda | cuda:<i>
  std::string dtype = "auto";   // auto (the checkpoint's own) | fp32 | bf16 | fp16
  uint64_t seed = 0;
  int threads = 0;              // 0: all cores
};

// p is the softmax of logits / temperature, then top-k, top-p, min-p, each renormalised. temperature 0 = greedy (one-hot).
struct SamplingOptions {
  double temperature = 1.0;  // [0, 10]
  int64_t top_k = 0;         // 0 = off
  double top_p = 1.0;        // (0, 1]
  double min_p = 0.0;        // [0, 1)
  bool greedy() const { return temperature == 0.0; }
};

enum class VerifyRule { kToken, kBlock, kCoupled };  // engine/decode/verifier.h

struct SpeculationOptions {
  int k = -1;                              // draft tokens a step; -1 = auto (the controller chooses, 0 included); 0 = plain
  int max_k = 8;                           // upper bound for auto
  VerifyRule verify = VerifyRule::kToken;
};

// Throw Error(kUsage) naming the flag and its range.
void validate(const SamplingOptions& options);
void validate(const SpeculationOptions& options);
void validate(const DeviceOptions& options);
VerifyRule parse_verify_rule(const std::string& name);  // "token" | "block" | "coupled"
std::string to_string(VerifyRule rule);

}  // namespace specdec
