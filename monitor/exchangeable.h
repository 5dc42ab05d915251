// Tests whether the newest answers of a remote model are exchangeable with its earlier ones. Uses log-probability
// tracking (Chauvin et al., arXiv 2512.03816): asks many times for the first token after a one-character prompt, its
// likeliest alternatives and their log-probabilities. Pure functions.
//
// Looking daily does not inflate false alarms: each look is tested by permutation against a pool of earlier looks.
// Under "nothing changed", given the union of pool and newest calls, every subset of that size is equally likely to be
// the newest. The pool for the next look depends on that union alone (a uniform subset of it, drawn regardless of which
// call came from where). So the p-values of all looks are jointly super-uniform, as independent ones are (Vovk,
// Nouretdinov, Gammerman, ICML 2003, for conformal p-values). The calibrator f below turns each into an e-value (Vovk
// and Wang, Annals of Statistics 2021, section 2), and M ← (M + 1) · f(p) is a Shiryaev–Roberts e-detector: with an
// alarm at M ≥ A the mean number of looks to a false alarm is at least A (Shin, Ramdas, Rinaldo 2024).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/philox.h"

namespace specdec::monitor {

// One call: the likeliest first tokens with their natural log-probabilities. Never empty.
using TopLogprobs = std::vector<std::pair<std::string, float>>;
// [prompt][call]
using LogprobCalls = std::vector<std::vector<TopLogprobs>>;

struct Comparison {
  double statistic = 0;  // mean over tokens of |difference of the mean log-probabilities|, in nats
  double p = 1;          // (1 + permutations at least as extreme) / (1 + permutations)
  // If there are two modes, the share of the calls that changed; for texts, the share that depart sooner than before.
  double share_changed = 0;
  bool two_modes = false;  // within a prompt some calls are as before and some are not: several backends answer
};

// If a token is missing among a call's likeliest, the smallest log-probability of that call is used for it. Considers
// at most 32 tokens per prompt, those that are in most calls. Both arguments have the same prompts, and every prompt
// has a call in each.
Comparison compare(const LogprobCalls& pool, const LogprobCalls& newest, int permutations, PhiloxStream& stream);

// Compares greedy texts, for endpoints without log-probabilities. Two texts of a prompt are compared by their common
// beginning. The newest is compared with the pool's texts as these are with each other, because batching makes even one
// model differ. A permutation declares another text of the prompt the newest. The statistic is 1 − the mean common
// part.
using Texts = std::vector<std::vector<std::string>>;  // [prompt][text]
Comparison compare(const Texts& pool, const std::vector<std::string>& newest, int permutations, PhiloxStream& stream);

// f(p) = ½ (B + 1) [p ≤ 1/(B + 1)] + ½ · ½ p^(−½): a calibrator (∫ f ≤ 1, decreasing) for p-values of B permutations,
// which reaches ½ (B + 1) in one look.
double e_value(double p, int permutations);
// Returns log of (exp(log_m) + 1) · e. The start is log_m = −∞ (M = 0).
double next_log_m(double log_m, double e);

// Returns a uniform subset of both, with at most `keep` calls per prompt.
LogprobCalls thin(const LogprobCalls& pool, const LogprobCalls& newest, size_t keep, PhiloxStream& stream);
Texts thin(const Texts& pool, const std::vector<std::string>& newest, size_t keep, PhiloxStream& stream);

}  // namespace specdec::monitor
