#include "deploy/validate/draft_costs.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "data/shards/shard_reader.h"
#include "deploy/models/load_pair.h"
#include "deploy/validate/speed.h"
#include "engine/decode/rollout.h"
#include "engine/decode/runners/model_runner.h"

namespace specdec::deploy {

namespace {

// Batch size of the roll-outs, and number of prompts on which costs are measured.
constexpr int kRolloutSequences = 8;
constexpr int64_t kCostPrompts = 8;

std::vector<TokenRow> prompts_of(const DraftCostOptions& options) {
  const std::set<std::string> wanted(options.ids.begin(), options.ids.end());
  std::vector<TokenRow> rows;
  for (TokenRow& row : data::ShardReader(options.data).rows("holdout"))
    if (wanted.count(row.id) > 0) rows.push_back(std::move(row));
  std::vector<TokenRow> chosen;
  for (const size_t i : choose_prompts(rows, options.prompts)) chosen.push_back(std::move(rows[i]));
  if (chosen.empty())
    throw Error(ErrorKind::kData, options.data + ": no held-out prompt to measure a draft's speed on");
  return chosen;
}

}  // namespace

DraftSpeed measure_draft(const DraftCostOptions& options, const Clock& clock, const ProgressFn& progress) {
  const std::vector<TokenRow> rows = prompts_of(options);
  size_t longest = 0;
  for (const TokenRow& row : rows) longest = std::max(longest, row.tokens.size());
  PairOptions wanted;
  wanted.target = options.target;
  wanted.draft = options.draft;
  wanted.device = options.device;
  wanted.chat = false;
  wanted.progress = progress;
  wanted.sequences = kRolloutSequences;
  wanted.tokens_per_sequence = static_cast<int64_t>(longest) + options.tokens;
  const LoadedPair pair = load_pair(wanted);
  if (!pair.target) throw Error(ErrorKind::kModel, options.draft + ": " + pair.warning);
  const auto target = pair.make_target_runner();
  const auto draft = decode::make_draft_runner(pair.draft, *target);

  decode::RolloutOptions rollout;
  rollout.k = rollout.max_k = options.max_k;
  rollout.request = {.max_tokens = options.tokens, .eos_ids = pair.config.eos_ids};
  rollout.request.sampling.temperature = options.temperature;
  rollout.seed = options.device.seed;
  rollout.batch = kRolloutSequences;
  const auto rollouts = decode::roll_out(*target, draft.get(), rows, rollout, progress);
  std::map<std::string, AcceptanceCounts> conversations;
  for (size_t i = 0; i < rows.size(); ++i)
    conversations[rows[i].conversation.empty() ? "request " + rows[i].id : rows[i].conversation].add(
        rollouts[i].counts);

  std::vector<std::vector<int32_t>> prompts;
  for (const size_t i : choose_prompts(rows, kCostPrompts)) prompts.push_back(prompt_of(rows[i]));
  CostOptions costs;
  costs.batches = {1};
  costs.max_k = options.max_k;
  costs.sampling = rollout.request.sampling;
  costs.seed = options.device.seed;
  const CostTable table = measure_costs({*target, *draft}, prompts, costs, clock, progress);
  DraftSpeed out;
  for (auto& [name, counts] : conversations) out.conversations.push_back(std::move(counts));
  if (table.verify_cost.count(1) == 0) return out;
  out.plain_seconds = table.plain_seconds.at(1);
  out.draft_cost = table.draft_cost.at(1);
  out.verify_cost = table.verify_cost.at(1);
  return out;
}

}  // namespace specdec::deploy
