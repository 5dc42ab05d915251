// Options of `specdec distill`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/run_options.h"
#include "base/schema/draft_kind.h"

namespace specdec::distill {

// Options of requests to an endpoint that computes labels (distill/labels/label_options.h).
struct EndpointOptions {
  std::string model, key_file;
  int64_t top_k = 0;
  int concurrency = 4;
};

// Earlier versions had no option --contexts and always measured as --contexts data does. Their run.json has no key
// `contexts`.
inline constexpr const char* kContextsOfEarlierRuns = "data";

// Options of --forecast, which predicts the acceptance after the run instead of doing the run
// (distill/study/forecast.h).
struct ForecastOptions {
  bool wanted = false;
  std::vector<int64_t> samples;  // number of rows of each sample; empty = chosen from the data's size
};

struct DistillOptions {
  // target and data are directories; draft is prune:N | model:DIR | config:FILE | eagle3.
  std::string target, data, draft, out;
  // Size of the draft's vocabulary, made of the commonest tokens of the data. 0 = the vocabulary of the target, or, for
  // --draft model:DIR, of the model in DIR.
  int64_t draft_vocab = 0;
  // Parsed by parse_teacher(). If the teacher is not "target", the target's layers are loaded only for draft prune:N.
  std::string teacher = "target";
  // Number of neighbouring ranks among which the target is divided if the target itself is the teacher
  // (distill/teacher/divided_target.h).
  int teacher_ranks = 1;
  EndpointOptions endpoint;  // used if `teacher` is the URL of an endpoint
  // Parsed by parse_loss(). The loss "ce" needs no target model: --target may then be a directory with only a
  // tokenizer.
  std::string loss = "lk_hybrid";
  double lk_eta = 3.0;
  double learning_rate = 0;  // at the peak; 0 = from the hidden size (distill/settings/defaults.h)
  double min_lr_ratio = 0.05, warmup_ratio = 0.03, weight_decay = 0.0, clip = 1.0;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  // Tokens of one batch, including the padding to its longest row. 0 = computed from the run's limits
  // (distill/settings/defaults.h).
  int64_t batch_tokens = 0;
  // Batches per update. 0 = 1 if batch_tokens is given, else chosen together with batch_tokens.
  int64_t accumulate = 0;
  int64_t sequence_length = 0;  // rows are cut to this many tokens; 0 = only to the models' context
  int64_t max_steps = 0;        // 0 = no limit in steps
  double epochs = 0;            // 0 = 3 epochs, unless steps or time are given
  double time_limit_seconds = 0;
  int64_t evaluate_every = 0;  // steps between evaluations; 0 = at most 10 evaluations over the run
  // Number of held-out rows that choose the checkpoint (selection half). 0 = 64, or fewer if one evaluation of 64 rows
  // would take more than 1 % of the run.
  int64_t evaluate_rows = 0;
  int64_t checkpoint_every = 0;  // steps between checkpoints; 0 = a checkpoint at each evaluation
  // An EAGLE-3 head is trained on this number of draft positions (training-time test). Position i, from 0, has the
  // weight ttt_decay^i.
  int64_t ttt_steps = 5;
  double ttt_decay = 0.8;
  // Length in tokens of roll-outs: the draft itself continues the text at random positions, and these tokens enter the
  // loss (distill/teacher/branches.h); 0 = none. `anchors` is the number of roll-outs per token in the loss.
  int64_t on_policy = 0;
  double anchors = 0.125;
  double temperature = 1.0;  // temperature of p and q in the loss and in the measured acceptance
  // If true, the loss uses the temperature with which a conversation was served, where the data has it.
  bool served_temperatures = false;
  // Directory that `serve --record-rejects` wrote: the tokens at which the target rejected a draft token. In the loss
  // these tokens have the weight `reject_weight`, all others 1.
  std::string rejects;
  double reject_weight = 3.0;
  // The id of the tokenizer's eos_token, which ends an answer in addition to the model's own EOS ids; -1 = none.
  int32_t tokenizer_end = -1;
  // "target" or "data": source of the answers on which the draft is measured (distill/train/contexts.h).
  std::string contexts = "target";
  // Caches the target's logits on the training set if they fit into this many MiB; 0 = never.
  int64_t teacher_cache_mib = 1024;
  // Divides the optimizer state among the ranks even if each rank has memory for all of it.
  bool shard_optimizer = false;
  // Recomputes each layer's activations in the backward pass instead of keeping them. Ignored for a head, which has one
  // layer.
  bool recompute = false;
  // The share of the training set to train on, in (0, 1]. Rows are taken in the order of their conversation's hash, so
  // a smaller share is a subset of a larger one. Limits of steps, epochs and time apply to this share. The budget for
  // measuring held-out rows is computed from limit / sample, so that runs with different shares are judged on the same
  // rows.
  double sample = 1;
  ForecastOptions forecast;
  // Kinds of drafts to compare instead of training `draft` (distill/study/comparison.h).
  std::vector<std::string> compared;
  std::string costs;  // file with the measured costs of the `compared` drafts in another engine; "" = measure them here
  bool resume = false;  // resumes from the newest intact checkpoint; starts anew if there is none
  DeviceOptions device;
};

// The loss: a weighted sum of terms, each a mean over the tokens with loss_mask 1. p is the target's distribution, q
// the draft's, α = Σ min(p, q).
struct LossMix {
  double ce = 0;              // −log q[next token]
  double kl = 0;              // Σ p log(p / q)
  double rkl = 0;             // Σ q log(q / p)
  double jsd = 0;             // β KL(p ‖ m) + (1 − β) KL(q ‖ m), m = β p + (1 − β) q
  double tv = 0;              // 1 − α
  double nla = 0;             // −log α
  double lk_hybrid = 0;       // λ kl + (1 − λ) tv with λ = exp(−η ā), where ā is the detached mean of α
  double beta = 0.5;          // β of jsd
  bool needs_target() const;  // true if any term other than ce has a weight
};
// Parses one term of the loss, or a sum of terms with weights: "kl", "jsd:0.3" (0.3 is β), "0.1*ce+0.9*tv". Throws
// Error(kUsage).
LossMix parse_loss(const std::string& text);

struct DraftSpec {
  std::string kind;      // "prune" | "model" | "config" | "eagle3"
  std::string argument;  // directory for model:, file for config:
  int64_t layers = 0;    // N of prune:N
};
DraftSpec parse_draft_spec(const std::string& text);  // throws Error(kUsage)
// The values of --draft that make a new head, a draft that reads the target's hidden states (distill/run/heads.h).
struct NewHead {
  const char* draft;
  DraftKind kind;
};
inline constexpr NewHead kNewHeads[] = {{"eagle3", DraftKind::kEagle3}};
const NewHead* new_head(const DraftSpec& spec);  // null if `spec` makes no new head

// Returns the JSON of config:FILE. Throws Error(kModel); if FILE is a directory, the message suggests the file in it.
Json read_config_file(const DraftSpec& spec);

// Parses "prune:1,prune:2,eagle3". Throws Error(kUsage) for an unknown or repeated kind, which the message names, and
// for fewer than two kinds.
std::vector<std::string> parse_compared(const std::string& text);

struct TeacherSpec {
  enum class Kind { kTarget, kHidden, kLabels, kEndpoint } kind = Kind::kTarget;
  std::string argument;  // directory of hidden: and labels:, or the URL of an endpoint
};
TeacherSpec parse_teacher(const std::string& text);  // throws Error(kUsage)

// Throws Error(kUsage) for a value out of range; the message names the flag and its range.
void validate(const DistillOptions& options);

}  // namespace specdec::distill
