// Where a step's random choices come from. Production draws uniforms from Philox; exact tests enumerate every outcome of the
// same step function. A choice is asked for once and its randomness is never used again.
#pragma once

#include <cstdint>
#include <span>

#include "base/philox.h"

namespace specdec::decode {

enum class Purpose { kDraft, kAccept, kResidual, kTarget };

class Randomness {
 public:
  virtual ~Randomness() = default;
  virtual int32_t draw(Purpose purpose, std::span<const float> weights) = 0;  // id with probability weight / Σ weights
  virtual bool accept(Purpose purpose, double probability) = 0;
};

// One stream per purpose under the request's seed, each with its own cursor.
class SeededRandomness final : public Randomness {
 public:
  explicit SeededRandomness(uint64_t seed);
  int32_t draw(Purpose purpose, std::span<const float> weights) override;
  bool accept(Purpose purpose, double probability) override;

 private:
  PhiloxStream streams_[4];
};

}  // namespace specdec::decode
