// Where a step's random choices come from. Production draws uniforms from Philox; exact tests enumerate every outcome
// of the same step function. A choice is asked for once and its randomness is never used again; only draw_at is meant
// to repeat.
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
  // Id with probability weight / Σ weights from noise that belongs to `position` of the text: any two draws at one
  // position see the same noise, so that similar weights mostly give the same id (the coupled rule, verifier.h).
  virtual int32_t draw_at(int64_t position, std::span<const float> weights) = 0;
};

// One stream per purpose under the request's seed, each with its own cursor; and one a position, read by id.
class SeededRandomness final : public Randomness {
 public:
  explicit SeededRandomness(uint64_t seed);
  int32_t draw(Purpose purpose, std::span<const float> weights) override;
  bool accept(Purpose purpose, double probability) override;
  // arg max of log w + Gumbel noise, which is arg min of E / w with exponential noise E. Throws Error(kInternal) if no
  // weight is positive.
  int32_t draw_at(int64_t position, std::span<const float> weights) override;

 private:
  uint64_t seed_;
  PhiloxStream streams_[4];
};

}  // namespace specdec::decode
