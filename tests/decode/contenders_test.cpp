// Tests that a draw with the noise of a position is the one of its definition, and that each instruction set finds the
// ids that can win, which are few.
#include "engine/decode/sampling/contenders.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/philox.h"
#include "engine/decode/sampling/randomness.h"

namespace specdec::decode {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();

double arrival(const Race& race, size_t id) {
  return -std::log(philox_uniform(race.seed, race.stream, id)) / static_cast<double>(race.weights[id]);
}
// Returns the first id whose arrival is the earliest, or −1 if no weight is positive.
int32_t winner(uint64_t seed, int64_t position, const std::vector<float>& weights) {
  const Race race = {seed, 4 + static_cast<uint64_t>(position), weights.data(), weights.size()};
  double best = std::numeric_limits<double>::infinity();
  int32_t id = -1;
  for (size_t x = 0; x < weights.size(); ++x)
    if (weights[x] > 0 && arrival(race, x) < best) best = arrival(race, x), id = static_cast<int32_t>(x);
  return id;
}

// Returns softmax(logits / temperature) of normal logits.
std::vector<float> softmax(size_t size, double temperature, PhiloxStream& random) {
  std::vector<double> masses(size);
  for (double& mass : masses) {
    const double radius = std::sqrt(-2 * std::log(random.uniform()));
    mass = std::exp(3 * radius * std::cos(2 * std::acos(-1.0) * random.uniform()) / temperature);
  }
  const double total = std::accumulate(masses.begin(), masses.end(), 0.0);
  std::vector<float> weights(size);
  for (size_t i = 0; i < size; ++i) weights[i] = static_cast<float>(masses[i] / total);
  return weights;
}

struct Kind {
  std::string name;
  std::function<std::vector<float>(size_t size, PhiloxStream& random)> weights;
};
std::vector<Kind> kinds() {
  std::vector<Kind> out;
  for (const double temperature : {0.1, 0.5, 1.0, 3.0})
    out.push_back({"temperature " + std::to_string(temperature),
                   [=](size_t size, PhiloxStream& random) { return softmax(size, temperature, random); }});
  out.push_back({"ascending", [](size_t size, PhiloxStream& random) {
                   std::vector<float> w = softmax(size, 0.5, random);
                   std::sort(w.begin(), w.end());
                   return w;
                 }});
  out.push_back({"many zeros", [](size_t size, PhiloxStream& random) {
                   std::vector<float> w = softmax(size, 1, random);
                   for (float& x : w) x = random.uniform() < 0.95 ? 0 : x;
                   w[random.below(size)] = 0.25f;
                   return w;
                 }});
  out.push_back({"one-hot", [](size_t size, PhiloxStream& random) {
                   std::vector<float> w(size);
                   w[random.below(size)] = 1;
                   return w;
                 }});
  out.push_back({"all equal", [](size_t size, PhiloxStream& random) {
                   return std::vector<float>(size, static_cast<float>(random.uniform()));
                 }});
  out.push_back({"denormal", [](size_t size, PhiloxStream& random) {
                   std::vector<float> w(size);
                   for (float& x : w) x = kDenormal * static_cast<float>(random.below(1 << 20));
                   w[random.below(size)] = kDenormal;
                   return w;
                 }});
  out.push_back({"of any size", [](size_t size, PhiloxStream& random) {
                   std::vector<float> w(size);
                   for (float& x : w) x = std::ldexp(1.0f, static_cast<int>(random.below(276)) - 149);
                   return w;
                 }});
  out.push_back({"large", [](size_t size, PhiloxStream& random) {
                   std::vector<float> w(size);
                   for (float& x : w) x = std::numeric_limits<float>::max() * static_cast<float>(random.uniform());
                   return w;
                 }});
  out.push_back({"not weights", [](size_t size, PhiloxStream& random) {
                   std::vector<float> w(size);
                   for (float& x : w) x = std::array{kNotANumber, -kInfinity, -1.0f, -0.0f, 0.5f}[random.below(5)];
                   w[random.below(size)] = 0.125f;
                   return w;
                 }});
  return out;
}

TEST(Contenders, ADrawIsThatOfItsDefinition) {
  PhiloxStream random(11, 0);
  for (const Kind& kind : kinds()) {
    for (size_t i = 0; i < 1000; ++i) {
      const size_t size = 1 + i % 100;
      const std::vector<float> weights = kind.weights(size, random);
      const uint64_t seed = i % 2 == 0 ? i : ~(i << 40);
      const int64_t position = static_cast<int64_t>(i * i % 3 == 0 ? i : i << 35);
      EXPECT_EQ(SeededRandomness(seed).draw_at(position, weights), winner(seed, position, weights))
          << kind.name << ", " << size << " weights, seed " << seed << ", position " << position;
    }
    for (const size_t size : {49152u, 49167u}) {
      const std::vector<float> weights = kind.weights(size, random);
      for (int64_t position = 0; position < 3; ++position)
        EXPECT_EQ(SeededRandomness(5).draw_at(position, weights), winner(5, position, weights))
            << kind.name << ", position " << position;
    }
  }
}

TEST(Contenders, AnInfiniteWeightWins) {
  std::vector<float> weights(100, 1.0f);
  weights[70] = weights[80] = kInfinity;
  EXPECT_EQ(SeededRandomness(1).draw_at(0, weights), 70);
}

TEST(Contenders, NothingToDrawFromIsAnError) {
  for (const float none : {0.0f, -0.0f, -1.0f, kNotANumber, -kInfinity})
    for (const size_t size : {0, 1, 31, 32, 33, 100})
      EXPECT_THROW(SeededRandomness(1).draw_at(0, std::vector<float>(size, none)), Error) << none << " × " << size;
}

// Returns all contenders for a time that does not change.
std::vector<size_t> contenders(const ContenderSearch& search, const Race& race, double best) {
  std::vector<size_t> ids;
  for (size_t from = 0; from < race.ids; from += kContenderGroup) {
    const Contenders found = search.next(race, from, best);
    EXPECT_EQ(found.first % kContenderGroup, found.first < race.ids ? 0 : found.first % kContenderGroup);
    EXPECT_GE(found.first, from);
    EXPECT_EQ(found.members != 0, found.first < race.ids) << "a group without members is not returned";
    for (size_t i = 0; i < kContenderGroup; ++i)
      if (found.members >> i & 1) ids.push_back(found.first + i);
    from = found.first;
  }
  return ids;
}

// Expects that nobody who arrives until `best` is missing, and that nobody is a member for whom even u = (r + 2) / 2^32
// were too late, where r is the first number of Philox. Times beyond 10^29 need not tell anybody apart.
void expect_right(const std::vector<size_t>& ids, const Race& race, double best, const std::string& where) {
  std::vector<bool> member(race.ids);
  for (const size_t id : ids) {
    ASSERT_LT(id, race.ids) << where;
    member[id] = true;
  }
  for (size_t id = 0; id < race.ids; ++id) {
    const double w = static_cast<double>(race.weights[id]);
    if (!(w > 0)) {
      EXPECT_FALSE(member[id]) << where << ", id " << id << " has no weight";
    } else if (!member[id]) {
      EXPECT_GT(arrival(race, id), best) << where << ", id " << id << " is missing";
    } else if (best < 1e29) {
      const double r = std::floor(philox_uniform(race.seed, race.stream, id) * 0x1p32);
      EXPECT_LE(0x1p32 - 2 - r, best * w * (1 + 0x1p-18) * 0x1p32 + 0x1p-20)
          << where << ", id " << id << " is too late";
    }
  }
}

TEST(Contenders, EveryInstructionSetFindsAllWhoCanWinAndFewMore) {
  const ContenderSearch* all[kContenderSearches];
  const int count = contender_searches(all);
  ASSERT_GE(count, 1);
  EXPECT_STREQ(all[count - 1]->name, "baseline");
  EXPECT_EQ(&contender_search(), all[0]);
  PhiloxStream random(12, 0);
  for (const Kind& kind : kinds()) {
    for (size_t i = 0; i < 150; ++i) {
      const std::vector<float> weights = kind.weights(i < 100 ? i + 1 : 3000, random);
      const Race race = {~i, i << 31, weights.data(), weights.size()};
      size_t some = random.below(weights.size());
      while (!(weights[some] > 0)) some = (some + 1) % weights.size();
      const double time = arrival(race, some);
      for (const double best : {time, time * 1e-3, time * 1e3, 0.0, std::numeric_limits<double>::infinity()}) {
        const std::string where =
            kind.name + ", " + std::to_string(weights.size()) + " weights, best " + std::to_string(best);
        const std::vector<size_t> ids = contenders(*all[0], race, best);
        expect_right(ids, race, best, where);
        for (int set = 1; set < count; ++set)
          EXPECT_EQ(contenders(*all[set], race, best), ids) << all[set]->name << ", " << where;
      }
    }
  }
}

}  // namespace
}  // namespace specdec::decode
