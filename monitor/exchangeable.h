// Are the newest answers of a remote model exchangeable with its earlier ones? Log-probability tracking (Chauvin et
// al., arXiv 2512.03816): the first token after a one-character prompt, its likeliest alternatives with their
// log-probabilities, many times. Pure functions.
//
// Daily looking does not inflate false alarms: each look is tested against a pool of the looks before it, by
// permutation. Given the union of pool and newest, which calls are the newest is uniform under "nothing changed", and
// the pool that the next look is tested against is a function of that union alone (a uniform subset of it, drawn
// whatever came from where). So the p-values of all looks are jointly super-uniform as independent ones are (Vovk,
// Nouretdinov, Gammerman, ICML 2003, for conformal p-values), each becomes an e-value by the calibrator f below (Vovk
// and Wang, Annals of Statistics 2021, section 2), and M ← (M + 1) · f(p) is a Shiryaev–Roberts e-detector: with an
// alarm at M ≥ A the mean number of looks to a false alarm is at least A (Shin, Ramdas, Rinaldo 2024).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/philox.h"

namespace specdec::monitor {

// One call: the likeliest first tokens and their natural log-probabilities. Never empty.
using TopLogprobs = std::vector<std::pair<std::string, float>>;
// [prompt][call]
using LogprobCalls = std::vector<std::vector<TopLogprobs>>;

struct Comparison {
  double statistic = 0;      // mean over tokens of |difference of the mean log-probabilities|, nats
  double p = 1;              // (1 + permutations at least as extreme) / (1 + permutations)
  double share_changed = 0;  // of the calls where there are two modes; of the texts those that part sooner
  bool two_modes = false;    // some calls are as before and some are not, prompt by prompt: several backends answer
};

// A token that is missing among a call's likeliest counts with the smallest log-probability of that call. At most 32
// tokens a prompt, those in most calls. Both have the same prompts; every prompt has a call in each.
Comparison compare(const LogprobCalls& pool, const LogprobCalls& newest, int permutations, PhiloxStream& stream);

// Without log-probabilities: greedy texts. Those of a prompt are compared by the part of them up to the first
// difference, the newest with the pool's as the pool's with each other (batching makes even one model differ); a
// permutation makes another text of the prompt the newest.
using Texts = std::vector<std::vector<std::string>>;  // [prompt][text]
Comparison compare(const Texts& pool, const std::vector<std::string>& newest, int permutations,
                   PhiloxStream& stream);  // statistic: 1 − mean common part

// f(p) = ½ (B + 1) [p ≤ 1/(B + 1)] + ½ · ½ p^(−½): a calibrator (∫ f ≤ 1, decreasing) for p-values of B permutations,
// which reaches ½ (B + 1) in one look.
double e_value(double p, int permutations);
// log of (exp(log_m) + 1) · e; the start is log_m = −∞ (M = 0).
double next_log_m(double log_m, double e);

// A uniform subset of both, at most `keep` a prompt.
LogprobCalls thin(const LogprobCalls& pool, const LogprobCalls& newest, size_t keep, PhiloxStream& stream);
Texts thin(const Texts& pool, const std::vector<std::string>& newest, size_t keep, PhiloxStream& stream);

}  // namespace specdec::monitor
