#include "deploy/validate/repeat_flags.h"

#include <gtest/gtest.h>

#include <set>

namespace specdec::deploy {
namespace {

TEST(RepeatFlags, MeasureTheSame) {
  ValidateOptions o;
  EXPECT_TRUE(repeat_flags(o).empty()) << "defaults need no flags";
  o.max_requests = 2000000;
  o.rollout_requests = 12;
  o.rollout_tokens = 32;
  o.floor = 0.55;
  o.predict = {"c=0.05,v=1.1,batch=8", "c=0.1,v=1.2"};
  o.device.seed = UINT64_MAX;
  const std::vector<std::string> flags = repeat_flags(o);
  EXPECT_EQ(std::set<std::string>(flags.begin(), flags.end()),
            (std::set<std::string>{"--max-requests=2000000", "--rollout-requests=12", "--rollout-tokens=32",
                                   "--floor=0.55", "--predict=c=0.05,v=1.1,batch=8", "--predict=c=0.1,v=1.2",
                                   "--seed=18446744073709551615"}));
}

}  // namespace
}  // namespace specdec::deploy
