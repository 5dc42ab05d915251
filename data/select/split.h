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
  // Share of the conversations, rounded; at least one is held out if share > 0 and there are two or more conversations.
  double share = 0.05;
  int64_t count = 0;          // number of conversations, used instead of the share; 0 = use the share
  std::string rule = "auto";  // auto | time | hash | first
  uint64_t seed = 0;
};

struct SplitResult {
  std::vector<bool> holdout;  // one per row
  std::string rule;           // the rule that was used: time | hash | first
};

// Chooses the held-out conversations by options.rule:
// * time: the conversations whose last row is latest. Throws Error(kData) if a row without forced_holdout has no time.
// * hash: the conversations with the smallest seeded hash; they stay nearly the same when rows are added.
// * first: the conversations that come first.
// * auto: time if every row has a time, else hash.
SplitResult split_rows(const std::vector<SplitRow>& rows, const SplitOptions& options);

uint64_t conversation_key(const std::string& conversation);

// Returns a permutation of 0 … n−1 (Fisher–Yates over Philox), which is the same for a seed on every machine.
std::vector<size_t> shuffled_order(size_t n, uint64_t seed);

}  // namespace specdec::data
