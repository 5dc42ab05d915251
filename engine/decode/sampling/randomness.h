// The source of random choices in a step. In production it draws uniform numbers from Philox. Tests replace it to
// enumerate every outcome of a step. Every choice uses new random numbers, except that draw_at() uses the same ones
// whenever it is called for the same position.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/philox.h"
#include "engine/rules/team.h"

namespace specdec::decode {

using rules::Purpose;

class Randomness {
 public:
  virtual ~Randomness() = default;
  // Returns an id with probability weight / Σ weights.
  virtual int32_t draw(Purpose purpose, std::span<const float> weights) = 0;
  virtual bool accept(Purpose purpose, double probability) = 0;
  // Returns an id with probability weight / Σ weights, using noise that belongs to text position `position`. All draws
  // at one position use the same noise, so that similar weights mostly give the same id (the coupled rule, verifier.h).
  virtual int32_t draw_at(int64_t position, std::span<const float> weights) = 0;
};

// Draws from Philox with the request's seed. Each Purpose has its own stream of random numbers and uses them in order.
// draw_at() uses another stream for each text position, in which number i is the noise of token id i.
class SeededRandomness final : public Randomness {
 public:
  explicit SeededRandomness(uint64_t seed);
  int32_t draw(Purpose purpose, std::span<const float> weights) override;
  bool accept(Purpose purpose, double probability) override;
  // Returns the arg max of log w + Gumbel noise, computed as the arg min of E / w with exponential noise E. Throws
  // Error(kInternal) if no weight is positive.
  int32_t draw_at(int64_t position, std::span<const float> weights) override;
  // The seed, and how many numbers were drawn for each purpose. A device needs both to continue the streams.
  uint64_t seed() const { return seed_; }
  std::array<uint64_t, 4> cursors() const;
  void set_cursors(const std::array<uint64_t, 4>& cursors);

 private:
  uint64_t seed_;
  PhiloxStream streams_[4];
};

}  // namespace specdec::decode
