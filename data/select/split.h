// Chooses the rows that are held out. Conversations are held out as a whole, so no conversation is ever in both splits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace specdec::data {

struct SplitRow {
  uint64_t conversation = 0;    // first 8 bytes of the SHA-256 of the conversation's name
  int64_t time = 0;             // Unix seconds, 0 = unknown
  bool forced_holdout = false;  // from --holdout-src; its whole conversation is held out
};

struct SplitOptions {
  // Share of the conversations, rounded; at least one is held out if share > 0 and there are two or more.
  double share = 0.05;
  int64_t count = 0;          // number of conversations, used instead of the share; 0 = use the share
  std::string rule = "auto";  // auto | time | hash | first
  uint64_t seed = 0;
};

struct SplitResult {
  std::vector<bool> holdout;  // one per row
  std::string rule;           // the rule that was used: time | hash | first
};

// Chooses the held-out conversations by options.rule. time: those whose last row is latest. hash: those with the
// smallest seeded hash, which stay nearly the same when rows are added. first: those that come first. auto: time if
// every row has a time, else hash. Throws Error(kData) for rule "time" if a row has no time. Rows with forced_holdout
// need no time.
SplitResult split_rows(const std::vector<SplitRow>& rows, const SplitOptions& options);

uint64_t conversation_key(const std::string& conversation);

// Returns a permutation of 0 … n−1 (Fisher–Yates over Philox), which is the same for a seed on every machine.
std::vector<size_t> shuffled_order(size_t n, uint64_t seed);

}  // namespace specdec::data
