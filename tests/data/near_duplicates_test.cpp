#include "data/select/near_duplicates.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "base/philox.h"
#include "tests/data/toy.h"

namespace specdec::data {
namespace {

using Shingles = std::set<std::vector<std::string>>;

// Computes the shingles from their definition, without the hash functions under test.
Shingles exact_shingles(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text + " ") {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter)
      word += static_cast<char>(std::tolower(c));
    else if (!word.empty())
      words.push_back(std::exchange(word, ""));
  }
  Shingles all;
  for (size_t i = 0; i + 5 <= words.size(); ++i)
    all.insert({words.begin() + static_cast<std::ptrdiff_t>(i), words.begin() + static_cast<std::ptrdiff_t>(i) + 5});
  return all;
}

double jaccard(const std::string& a, const std::string& b) {
  const Shingles x = exact_shingles(a), y = exact_shingles(b);
  Shingles both;
  std::set_intersection(x.begin(), x.end(), y.begin(), y.end(), std::inserter(both, both.begin()));
  return static_cast<double>(both.size()) / static_cast<double>(x.size() + y.size() - both.size());
}

std::string random_text(PhiloxStream& random, size_t words) {
  std::string text;
  for (size_t i = 0; i < words; ++i) text += (i ? " " : "") + std::string("w") + std::to_string(random.below(5000));
  return text;
}

// Returns the text with `changes` of its words replaced.
std::string changed(const std::string& text, size_t changes, PhiloxStream& random) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string w; in >> w;) words.push_back(w);
  for (size_t i = 0; i < changes; ++i) words[random.below(words.size())] = "new" + std::to_string(random.below(100000));
  std::string out;
  for (const std::string& w : words) out += (out.empty() ? "" : " ") + w;
  return out;
}

TEST(NearDuplicates, EstimateAgreesWithTheExactSimilarity) {
  PhiloxStream random(1, 0);
  double sum_error = 0, sum_square = 0, sum_variance = 0;
  constexpr int kPairs = 400;
  for (int i = 0; i < kPairs; ++i) {
    const std::string a = random_text(random, 40 + random.below(200)), b = changed(a, random.below(20), random);
    const double exact = jaccard(a, b), estimate = estimated_similarity(min_hash(shingles(a)), min_hash(shingles(b)));
    const double deviation = std::sqrt(std::max(exact * (1 - exact), 1e-9) / kMinHashes);
    EXPECT_LE(std::abs(estimate - exact), 5 * deviation + 1e-9) << exact;
    sum_error += estimate - exact;
    sum_square += (estimate - exact) * (estimate - exact);
    sum_variance += deviation * deviation;
  }
  EXPECT_LE(std::abs(sum_error), 4 * std::sqrt(sum_variance));  // the estimate is unbiased
  EXPECT_NEAR(sum_square / sum_variance, 1, 0.35);              // the variance is that of 128 independent permutations
}

TEST(NearDuplicates, DropsWhatIsNearAndNothingElse) {
  const Scratch scratch;
  PhiloxStream random(2, 0);
  int near = 0, near_seen = 0, far = 0, far_seen = 0;
  NearDuplicates index(scratch.path(), 0.8);
  for (int i = 0; i < 600; ++i) {
    const std::string a = random_text(random, 60 + random.below(200)), b = changed(a, 1 + random.below(12), random);
    EXPECT_FALSE(index.seen(a));
    const double exact = jaccard(a, b);
    if (exact > 0.9) ++near, near_seen += index.seen(b);
    if (exact < 0.65) ++far, far_seen += index.seen(b);
  }
  ASSERT_GT(near, 50);
  ASSERT_GT(far, 100);
  EXPECT_GE(near_seen, near * 98 / 100);
  EXPECT_LE(far_seen, far / 100);
  EXPECT_TRUE(fs::is_empty(scratch.path()));  // the scratch file has no name
}

TEST(NearDuplicates, CaseAndPunctuationDoNotCountAndShortTextsAreLeftAlone) {
  const Scratch scratch;
  NearDuplicates index(scratch.path(), 0.8);
  EXPECT_FALSE(index.seen("Once upon a time there was a tiny draft."));
  EXPECT_TRUE(index.seen("once upon a time, there WAS a tiny draft!"));
  for (const char* text : {"yes please", "yes please", "", "!?"}) EXPECT_FALSE(index.seen(text)) << text;
  EXPECT_FALSE(index.seen("東京は日本の首都です。人口は多い。"));
  EXPECT_TRUE(index.seen("東京は日本の首都です。人口は多い！"));
  EXPECT_FALSE(index.seen("大阪は日本の西にあります。食べ物がおいしい。"));
}

TEST(NearDuplicates, MemoryIsBoundedAndOldRowsAreForgotten) {
  const Scratch scratch;
  NearDuplicates index(scratch.path(), 0.8, 256);
  PhiloxStream random(3, 0);
  std::vector<std::string> texts;
  for (int i = 0; i < 5000; ++i) texts.push_back(random_text(random, 30));
  for (const std::string& text : texts) ASSERT_FALSE(index.seen(text));
  int old = 0, recent = 0;
  for (size_t i = 0; i < 100; ++i) recent += index.seen(texts[texts.size() - 1 - i]);
  for (size_t i = 0; i < 100; ++i) old += index.seen(texts[i]);
  EXPECT_EQ(recent, 100);
  EXPECT_LE(old, 5);
}

TEST(NearDuplicates, GrowingConversationsAreKept) {
  TrafficRecord record;
  std::string answer;
  const Scratch scratch;
  NearDuplicates index(scratch.path(), 0.8);
  PhiloxStream random(4, 0);
  for (int turn = 0; turn < 12; ++turn) {  // a row with the whole conversation is logged after each turn
    record.messages.push_back({"user", random_text(random, 10)});
    record.messages.push_back({"assistant", random_text(random, 20)});
    EXPECT_FALSE(index.seen(newest_exchange(record))) << turn;
  }
  EXPECT_TRUE(index.seen(newest_exchange(record)));
  record.messages.insert(record.messages.begin(), {"system", "another beginning"});
  EXPECT_TRUE(index.seen(newest_exchange(record)));
}

TEST(NearDuplicates, IngestCountsThem) {
  const Scratch s;
  PhiloxStream random(5, 0);
  std::string file;
  for (int i = 0; i < 20; ++i) {
    const std::string text = random_text(random, 100);
    file += Json{{"text", text}}.dump() + "\n" + Json{{"text", changed(text, 1, random)}}.dump() + "\n";
  }
  IngestOptions o = ingest_options(s.write("near.jsonl", file), make_toy_target(s / "target"), s / "out");
  EXPECT_EQ(ingest(o, {}).report.accepted, 40);
  o.near_duplicates = 0.8;
  const IngestResult done = ingest(o, {});
  EXPECT_EQ(done.report.near_duplicates, 20);
  EXPECT_EQ(done.report.accepted, 20);
  EXPECT_EQ(done.index.duplicates, 20);
}

}  // namespace
}  // namespace specdec::data
