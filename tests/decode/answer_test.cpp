#include "engine/decode/answer.h"

#include <gtest/gtest.h>

namespace specdec::decode {
namespace {

using Tokens = std::vector<int32_t>;

struct Taken {
  Tokens tokens;
  std::vector<bool> eos;
};

TEST(AnswerCut, EndsAfterAnEosWhichBelongsToTheAnswer) {
  const RequestOptions options{.max_tokens = 10, .eos_ids = {7, 9}};
  AnswerCut cut(options);
  Taken taken;
  const auto take = [&](int32_t token, bool is_eos) {
    taken.tokens.push_back(token);
    taken.eos.push_back(is_eos);
    return true;
  };
  EXPECT_EQ(cut.add(Tokens{1, 2}, take), AnswerEnd::kNone);
  EXPECT_EQ(cut.add(Tokens{3, 9, 4}, take), AnswerEnd::kStop);
  EXPECT_EQ(taken.tokens, (Tokens{1, 2, 3, 9}));
  EXPECT_EQ(taken.eos, (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(cut.tokens(), 4);
}

TEST(AnswerCut, EndsWhereTheCallerStopsIt) {
  const RequestOptions options{.max_tokens = 3};
  AnswerCut cut(options);
  EXPECT_EQ(cut.add(Tokens{1, 2, 3, 4}, [](int32_t token, bool) { return token != 2; }), AnswerEnd::kStop);
  EXPECT_EQ(cut.tokens(), 2);
}

TEST(AnswerCut, EndsAfterSoManyTokensAndAStopComesBeforeThat) {
  const RequestOptions options{.max_tokens = 3, .eos_ids = {5}};
  const auto take = [](int32_t, bool) { return true; };
  AnswerCut cut(options);
  EXPECT_EQ(cut.add(Tokens{1, 2}, take), AnswerEnd::kNone);
  EXPECT_EQ(cut.add(Tokens{3, 4}, take), AnswerEnd::kLength);
  EXPECT_EQ(cut.tokens(), 3);
  AnswerCut at_the_end(options);
  EXPECT_EQ(at_the_end.add(Tokens{1, 2, 5}, take), AnswerEnd::kStop) << "the last token that may come is an EOS";
}

}  // namespace
}  // namespace specdec::decode
