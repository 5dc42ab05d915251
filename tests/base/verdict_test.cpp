#include "base/verdict.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/base/scratch.h"

namespace specdec {

namespace {

struct Expected {
  Verdict verdict;
  std::string name;
  int exit_code;
};
// Every verdict, in the order of the enum, with its name in JSON and its exit code from docs/contract.md.
const std::vector<Expected> kContract = {
    {Verdict::kPass, "pass", 0},
    {Verdict::kFaster, "faster", 0},
    {Verdict::kHealthy, "healthy", 0},
    {Verdict::kWarn, "warn", 0},
    {Verdict::kImproved, "improved", 0},
    {Verdict::kFail, "fail", 3},
    {Verdict::kNotLossless, "not_lossless", 3},
    {Verdict::kDrift, "drift", 3},
    {Verdict::kNoSignificantGain, "no_significant_gain", 3},
    {Verdict::kInconclusive, "inconclusive", 4},
    {Verdict::kStale, "stale", 5},
    {Verdict::kStaleTarget, "stale_target", 5},
    {Verdict::kNotWorthIt, "not_worth_it", 6},
};

}  // namespace

TEST(Verdict, EveryNameLeadsBack) {
  std::set<std::string> names;
  for (const Expected& e : kContract) {
    EXPECT_EQ(to_string(e.verdict), e.name);
    EXPECT_TRUE(verdict_named(e.name) == e.verdict) << e.name;
    names.insert(e.name);
  }
  EXPECT_EQ(names.size(), kContract.size());
}

TEST(Verdict, EveryExitCodeIsTheContracts) {
  for (const Expected& e : kContract) EXPECT_EQ(exit_code(e.verdict), e.exit_code) << e.name;
}

TEST(Verdict, TheGateHasSix) {
  const std::set<Verdict> gate = {Verdict::kPass,       Verdict::kFail,         Verdict::kNotLossless,
                                  Verdict::kNotWorthIt, Verdict::kInconclusive, Verdict::kStale};
  for (const Expected& e : kContract) EXPECT_EQ(is_gate_verdict(e.verdict), gate.contains(e.verdict)) << e.name;
}

TEST(Verdict, ANameThatNoVerdictHasIsNone) {
  for (const char* name : {"", "Pass", "pass ", "not worth it", "great", "promoted", "running", "0"})
    EXPECT_FALSE(verdict_named(name)) << name;
  EXPECT_FALSE(verdict_named(std::string("pass\0", 5)));
}

TEST(Verdict, JsonHasTheName) {
  const Json json = {{"verdict", Verdict::kNotWorthIt}};
  EXPECT_EQ(json.dump(), R"({"verdict":"not_worth_it"})");
}

TEST(Verdict, ANumberThatIsNoneIsAnInternalError) {
  // The first number that is no verdict. If kContract lacked a verdict, to_string() would not throw here.
  const auto next = static_cast<Verdict>(kContract.size());
  testing::expect_error(ErrorKind::kInternal, {"has no row"}, [&] { to_string(next); });
}

}  // namespace specdec
