// Tests whether the newest answers of a remote model are exchangeable with its earlier answers. Uses log-probability
// tracking (Chauvin et al., arXiv 2512.03816): each call asks for the first token after a one-character prompt, with
// its likeliest alternatives and their log-probabilities. All functions here are pure.
//
// Daily tests raise no more false alarms than stated, for this reason. Each test compares the newest calls with a pool
// of earlier calls, by permutation. If nothing has changed, then given the union of both, every subset of the right
// size is equally likely to be the newest calls. The pool of the next test is a uniform subset of the union, drawn
// regardless of which calls were the newest. So the p-values of all tests are jointly super-uniform, as independent
// p-values are (Vovk, Nouretdinov, Gammerman, ICML 2003, for conformal p-values). The calibrator f below turns each
// p-value into an e-value (Vovk and Wang, Annals of Statistics 2021, section 2). M ← (M + 1) · f(p) is a
// Shiryaev–Roberts e-detector. With an alarm at M ≥ A, the mean number of tests to a false alarm is at least A (Shin,
// Ramdas, Rinaldo 2024).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/philox.h"

namespace specdec::monitor {

// One call: the likeliest first tokens with their natural log-probabilities. Never empty.
using TopLogprobs = std::vector<std::pair<std::string, float>>;
// Calls by prompt: LogprobCalls[prompt][call].
using LogprobCalls = std::vector<std::vector<TopLogprobs>>;

struct Comparison {
  double statistic = 0;  // mean over tokens of |difference of the mean log-probabilities|, in nats
  double p = 1;          // (1 + permutations at least as extreme) / (1 + permutations)
  // If two_modes, the share of the calls that changed. If greedy texts are compared, the share of the prompts whose
  // newest text has a shorter mean common prefix with the other texts than any earlier text has.
  double share_changed = 0;
  bool two_modes = false;  // some calls of a prompt have changed and others have not: several backends answer
};

// Compares log-probabilities. A token that is missing in a call gets the call's smallest log-probability. Considers at
// most 32 tokens per prompt, those that occur in the most calls. Both arguments have the same prompts, with at least
// one call for every prompt.
Comparison compare(const LogprobCalls& pool, const LogprobCalls& newest, int permutations, PhiloxStream& stream);

// Compares the newest greedy texts with a pool of earlier ones, for endpoints without log-probabilities. Two texts of a
// prompt are compared by the length of their common prefix. Texts of the pool are also compared with each other,
// because with batching even an unchanged model gives different texts. A permutation takes another text of each prompt
// as the newest. The statistic is 1 − the mean length of the common prefix, as a fraction of the text.
using Texts = std::vector<std::vector<std::string>>;  // [prompt][text]
Comparison compare(const Texts& pool, const std::vector<std::string>& newest, int permutations, PhiloxStream& stream);

// f(p) = ½ (B + 1) [p ≤ 1/(B + 1)] + ½ · ½ p^(−½). This is a calibrator (∫ f ≤ 1, decreasing) for the p-values of B
// permutations, and at the smallest p it is at least ½ (B + 1).
double e_value(double p, int permutations);
// Returns log((exp(log_m) + 1) · e). Pass log_m = −∞ (M = 0) for the first test.
double next_log_m(double log_m, double e);

// Chooses the earlier calls with which the next test compares: returns for each prompt at most `keep` of the calls of
// `pool` and `newest` together, chosen uniformly at random.
LogprobCalls thin(const LogprobCalls& pool, const LogprobCalls& newest, size_t keep, PhiloxStream& stream);
Texts thin(const Texts& pool, const std::vector<std::string>& newest, size_t keep, PhiloxStream& stream);

}  // namespace specdec::monitor
