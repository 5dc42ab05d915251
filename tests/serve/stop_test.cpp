#include "deploy/serve/answer/stop.h"

#include <gtest/gtest.h>

#include "base/philox.h"

namespace specdec::deploy {
namespace {

// Returns the text that a client may see, and whether a stop string matches. Stop strings that end within the first
// `early` bytes are ignored. Of the others, the stop string that ends first matches; if several end at the same byte,
// the longest matches. The text ends before the match or, with `include`, after it.
std::pair<std::string, bool> expected(const std::string& text, const std::vector<std::string>& stops, size_t early = 0,
                                      bool include = false) {
  for (size_t end = early + 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& s : stops)
      if (s.size() <= end && text.compare(end - s.size(), s.size(), s) == 0) longest = std::max(longest, s.size());
    if (longest > 0) return {text.substr(0, end - (include ? 0 : longest)), true};
  }
  return {text, false};
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStopString) {
  StopMatcher m({"END"});
  EXPECT_EQ(m.push("abcE"), "abc");
  EXPECT_EQ(m.push("N"), "");
  EXPECT_EQ(m.push("x"), "ENx");
  EXPECT_FALSE(m.matched());
  EXPECT_EQ(m.push("yEN"), "y");
  EXPECT_EQ(m.finish(), "EN");
}

TEST(StopMatcher, NothingFollowsAMatch) {
  StopMatcher m({"\n\n", "stop"});
  EXPECT_EQ(m.push("one\n"), "one");
  EXPECT_EQ(m.push("\ntwo"), "");
  EXPECT_TRUE(m.matched());
  EXPECT_EQ(m.push("three"), "");
  EXPECT_EQ(m.finish(), "");
}

TEST(StopMatcher, OverlappingBordersAreNotMissed) {
  StopMatcher m({"aab"});
  EXPECT_EQ(m.push("aaab"), "a");
  EXPECT_TRUE(m.matched());
  StopMatcher n({"abab", "bb"});
  EXPECT_EQ(n.push("ababab"), "");
  EXPECT_TRUE(n.matched());
}

TEST(StopMatcher, WithoutStopStringsTextPasses) {
  StopMatcher m({});
  EXPECT_EQ(m.push("anything"), "anything");
  EXPECT_EQ(m.finish(), "");
}

TEST(StopMatcher, AnIncludedStopStringIsShownAndNothingWaits) {
  StopMatcher m({"END"}, true);
  EXPECT_EQ(m.push("abcE"), "abcE");
  EXPECT_EQ(m.push("NDx"), "ND");
  EXPECT_TRUE(m.matched());
  EXPECT_EQ(m.push("y"), "");
}

TEST(StopMatcher, WhatCompletesTooEarlyIsNoMatch) {
  StopMatcher m({"ab", "cd"});
  EXPECT_EQ(m.push("abab", false), "abab");
  EXPECT_EQ(m.push("xc", false), "x");
  EXPECT_EQ(m.push("d"), "") << "it began early and completes now";
  EXPECT_TRUE(m.matched());
  StopMatcher n({"aa"});
  EXPECT_EQ(n.push("aa", false), "a") << "the second a may begin the next one";
  EXPECT_EQ(n.push("a"), "");
  EXPECT_TRUE(n.matched());
}

// For any text and stop strings, and for any division of the text into pieces, the result must equal expected(), and
// text that was shown must not change later.
TEST(StopMatcher, AgreesWithTheDefinitionHoweverTheTextIsCut) {
  PhiloxStream random(7, 0);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (uint64_t i = random.below(30); i > 0; --i) text.push_back("ab\n"[random.below(3)]);
    std::vector<std::string> stops;
    for (uint64_t i = random.below(4); i > 0; --i) {
      std::string s;
      for (uint64_t j = 1 + random.below(5); j > 0; --j) s.push_back("ab\n"[random.below(3)]);
      stops.push_back(s);
    }
    const size_t early = random.below(2) * random.below(text.size() + 1);
    const bool include = random.below(2) == 1;
    const auto [want, matched] = expected(text, stops, early, include);
    StopMatcher m(stops, include);
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t n = at < early ? std::min(early - at, 1 + random.below(5)) : 1 + random.below(5);
      shown += m.push(text.substr(at, n), at >= early);
      ASSERT_TRUE(want.starts_with(shown)) << round;
      at += n;
    }
    shown += m.finish();
    ASSERT_EQ(shown, want) << round;
    ASSERT_EQ(m.matched(), matched) << round;
  }
}

}  // namespace
}  // namespace specdec::deploy
