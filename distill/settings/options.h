// Options of `specdec distill`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/run_options.h"
#include "base/schema/draft_kind.h"

namespace specdec::distill {

// How an endpoint is asked for the target's answers (distill/labels/label_options.h).
struct EndpointOptions {
  std::string model, key_file;
  int64_t top_k = 0;
  int concurrency = 4;
};

// The value of --contexts that describes the runs of versions without this option. run.json has no `contexts` for it.
inline constexpr const char* kContextsOfEarlierRuns = "data";

// Forecasts what the run will bring instead of training (distill/study/forecast.h).
struct ForecastOptions {
  bool wanted = false;
  std::vector<int64_t> samples;  // training rows of each sample; empty = by the size of the data
};

struct DistillOptions {
  // target and data are directories; draft is prune:N | model:DIR | config:FILE | eagle3.
  std::string target, data, draft, out;
  // Size of the draft's vocabulary, which takes the commonest tokens of the data; 0 = all tokens, or the vocabulary
  // of the model that --draft model: names.
  int64_t draft_vocab = 0;
  // Text for parse_teacher. With another teacher than the target itself, the target's layers are read only for
  // draft prune:N.
  std::string teacher = "target";
  // Neighbouring ranks that hold the teacher `target` together (distill/teacher/divided_target.h).
  int teacher_ranks = 1;
  EndpointOptions endpoint;  // with the URL of an endpoint as teacher
  // Text for parse_loss. ce alone needs no target model: --target may then be a directory with only a tokenizer.
  std::string loss = "lk_hybrid";
  double lk_eta = 3.0;
  double learning_rate = 0;  // 0 = by hidden size (distill/settings/defaults.h)
  double min_lr_ratio = 0.05, warmup_ratio = 0.03, weight_decay = 0.0, clip = 1.0;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  // Tokens of one batch, whose rows have nearly equal length and are padded to the longest; 0 = by the run's limits
  // (distill/settings/defaults.h).
  int64_t batch_tokens = 0;
  // Batches per update; 0 = as many as the chosen batch_tokens needs, or 1 if batch_tokens is given.
  int64_t accumulate = 0;
  int64_t sequence_length = 0;  // 0 = the longest row, at most the models' context
  int64_t max_steps = 0;        // 0 = by epochs or time
  double epochs = 0;            // 0 = 3 epochs, unless steps or time are given
  double time_limit_seconds = 0;
  int64_t evaluate_every = 0;    // steps; 0 = 10 evaluations over the run
  int64_t evaluate_rows = 0;     // 0 = 64, or fewer if 64 would take over a hundredth of the run
  int64_t checkpoint_every = 0;  // steps; 0 = at evaluations
  // An EAGLE-3 head is trained on this many drafted positions at a time; position i has the weight ttt_decay^i.
  int64_t ttt_steps = 5;
  double ttt_decay = 0.8;
  // Tokens that the draft writes itself after random positions of the text, and learns at (distill/teacher/branches.h);
  // 0 = none. `anchors` is the number of such positions per learnt token.
  int64_t on_policy = 0;
  double anchors = 0.125;
  double temperature = 1.0;          // temperature of p and q in the loss and in the measured acceptance
  bool served_temperatures = false;  // in the loss, that of each conversation where the data know it
  // Directory of what `serve --record-rejects` wrote, and the weight in the loss of tokens that stand there where the
  // target refused a draft.
  std::string rejects;
  double reject_weight = 3.0;
  // The id of the tokenizer's eos_token, with which an answer of the target ends, too; -1 = it has none.
  int32_t tokenizer_end = -1;
  std::string contexts = "target";  // target | data: who writes the answers that measure (distill/train/contexts.h)
  // The target's logits on the training set are kept in memory if they fit into this; 0 = never.
  int64_t teacher_cache_mib = 1024;
  // The ranks share the optimizer's state even if memory would hold it whole on each.
  bool shard_optimizer = false;
  // Each layer's activations are computed again in the backward pass instead of being kept. A head has one layer, and
  // keeps them.
  bool recompute = false;
  // The share of the training set that is learnt from: the first rows in an order by the hash of their conversations,
  // so that a smaller share is a part of a larger one. The other limits are those of this run, not of the whole. What a
  // run may measure on held-out rows before and after training follows the whole (limits / sample), so that runs of
  // different shares are judged on the same rows.
  double sample = 1;
  ForecastOptions forecast;
  // Kinds of drafts to compare instead of training `draft` (distill/study/comparison.h).
  std::vector<std::string> compared;
  std::string costs;    // file with the costs of `compared` in another engine; "" = measured here
  bool resume = false;  // resumes from the newest intact checkpoint; starts anew if there is none
  DeviceOptions device;
};

// The loss: a sum of weighted terms, each a mean over the learnt tokens. p is the target, q the draft, α = Σ min(p, q).
struct LossMix {
  double ce = 0;              // −log q[next token]
  double kl = 0;              // Σ p log(p / q)
  double rkl = 0;             // Σ q log(q / p)
  double jsd = 0;             // β KL(p ‖ m) + (1 − β) KL(q ‖ m), m = β p + (1 − β) q
  double tv = 0;              // 1 − α
  double nla = 0;             // −log α
  double lk_hybrid = 0;       // λ kl + (1 − λ) tv with λ = exp(−η ā), where ā is the detached mean of α
  double beta = 0.5;          // β of jsd
  bool needs_target() const;  // true if any term but ce is used
};
// Parses a term, or several with weights: "kl", "jsd:0.3" (β), "0.1*ce+0.9*tv". Throws Error(kUsage).
LossMix parse_loss(const std::string& text);

struct DraftSpec {
  std::string kind;      // "prune" | "model" | "config" | "eagle3"
  std::string argument;  // directory for model:, file for config:
  int64_t layers = 0;    // N of prune:N
};
DraftSpec parse_draft_spec(const std::string& text);  // throws Error(kUsage)
// The kinds of --draft that make a new head, which reads the target's hidden states (distill/run/heads.h).
struct NewHead {
  const char* draft;
  DraftKind kind;
};
inline constexpr NewHead kNewHeads[] = {{"eagle3", DraftKind::kEagle3}};
const NewHead* new_head(const DraftSpec& spec);  // null: it makes none

// Returns the JSON of config:FILE. Throws Error(kModel), which for a directory names the file in it.
Json read_config_file(const DraftSpec& spec);

// Parses "prune:1,prune:2,eagle3". Throws Error(kUsage) that names the first kind that is unknown or there twice, or
// if there are fewer than two.
std::vector<std::string> parse_compared(const std::string& text);

struct TeacherSpec {
  enum class Kind { kTarget, kHidden, kLabels, kEndpoint } kind = Kind::kTarget;
  std::string argument;  // a directory for hidden: and labels:, the URL of an endpoint
};
TeacherSpec parse_teacher(const std::string& text);  // throws Error(kUsage)

// Throws Error(kUsage) that names the flag and its range.
void validate(const DistillOptions& options);

}  // namespace specdec::distill
