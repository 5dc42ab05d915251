#include "distill/run/draft_init.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "distill/run/draft_vocab.h"
#include "distill/run/heads.h"
#include "distill/teacher/teacher.h"
#include "distill/train/evaluate.h"

namespace specdec::distill {

namespace {

constexpr int64_t kProbeTokens = 4096, kProbeBatchTokens = 2048, kProbeValues = int64_t{1} << 27;
constexpr int64_t kLeastProbeRows = 4, kLeastCandidates = 2;
// If the target has at least kDeep times as many layers as the draft, choose_layers() adds layers one by one to an
// empty model. Otherwise it removes layers one by one from the target. Adding k of n layers costs up to k · n passes of
// shallow models; removing costs n² / 2 passes of deep models.
constexpr int64_t kDeep = 4;

using Layers = std::vector<int64_t>;

// Returns `count` of the candidates, evenly spaced and including the last one.
std::vector<Layers> spread(const std::vector<Layers>& candidates, size_t count) {
  if (count >= candidates.size()) return candidates;
  std::vector<Layers> out;
  for (size_t i = 1; i <= count; ++i) out.push_back(candidates[i * candidates.size() / count - 1]);
  return out;
}

// candidates_to_add() and candidates_to_remove() return the candidates of one round of the layer search. A candidate is
// a set of layers. candidates_to_add() adds one layer to `kept`, the last layer first. candidates_to_remove() removes
// one layer from `kept`, but not the first or the last one while there are more than two.
std::vector<Layers> candidates_to_add(const Layers& kept, int64_t total) {
  std::vector<Layers> out;
  for (int64_t layer = total - 1; layer >= 0; --layer) {
    if (std::find(kept.begin(), kept.end(), layer) != kept.end()) continue;
    out.push_back(kept);
    out.back().insert(std::upper_bound(out.back().begin(), out.back().end(), layer), layer);
  }
  return out;
}
std::vector<Layers> candidates_to_remove(const Layers& kept) {
  std::vector<Layers> out;
  const size_t ends = kept.size() > 2 ? 1 : 0;  // with two layers left, either may be removed
  for (size_t i = ends; i < kept.size() - ends; ++i) {
    out.push_back(kept);
    out.back().erase(out.back().begin() + static_cast<ptrdiff_t>(i));
  }
  return out;
}

// The plan of a layer search: `rounds` has the number of candidates (sets of layers) of each round, `rows` is the
// number of training rows on which each candidate is measured, `passes` the number of candidates in all rounds.
// plan_search() keeps rows · passes within `limit` (LayerSearch::passes).
struct SearchPlan {
  std::vector<size_t> rounds;
  size_t rows = 0, passes = 0;
};
SearchPlan plan_search(int64_t keep, int64_t total, size_t rows, int64_t limit) {
  SearchPlan plan;
  const bool adds = keep * kDeep <= total;
  for (int64_t n = adds ? 0 : total; adds ? n < keep : n > keep; n += adds ? 1 : -1)
    plan.rounds.push_back(static_cast<size_t>(adds ? total - n : n > 2 ? n - 2 : n));
  const auto count = [&] { return std::accumulate(plan.rounds.begin(), plan.rounds.end(), size_t{0}); };
  const auto most = static_cast<size_t>(limit);
  const size_t all = std::max<size_t>(1, count());
  plan.rows = std::min(rows, std::max<size_t>(kLeastProbeRows, most / all));
  const double share = static_cast<double>(most / std::max<size_t>(1, plan.rows)) / static_cast<double>(all);
  for (size_t& n : plan.rounds)
    if (share < 1)
      n = std::clamp<size_t>(static_cast<size_t>(share * static_cast<double>(n)), std::min<size_t>(n, kLeastCandidates),
                             n);
  plan.passes = count();
  return plan;
}

// Makes a new head, or reads the existing head of --draft model:DIR.
DraftInit init_head(const HeadKind& kind, const DraftInitOptions& options,
                    const std::shared_ptr<const model::Decoder>& target, const std::vector<TokenRow>& train) {
  const model::DecoderConfig& theirs = target->config;
  const HeadOptions head{.dtype = model::resolve_dtype(options.dtype, theirs),
                         .device = options.device,
                         .seed = options.seed,
                         .ttt_steps = options.ttt_steps,
                         .ttt_decay = options.ttt_decay};
  if (options.spec.kind == "model") return {{}, nullptr, kind.read(head, target, options.spec.argument)};
  const int64_t size = options.draft_vocab > 0 ? options.draft_vocab : theirs.vocab_size;
  return {{}, nullptr, kind.make(head, target, choose_draft_vocab(train, size, theirs))};
}

}  // namespace

std::vector<TokenRow> probe_rows(const std::vector<TokenRow>& train, int64_t vocab) {
  std::vector<TokenRow> probe;
  const size_t wanted = 64, stride = std::max<size_t>(1, train.size() / wanted);
  const int64_t most = std::clamp<int64_t>(kProbeValues / vocab, 256, kProbeTokens);
  // If the limit allows few positions, takes the first positions of several rows instead of all positions of one row.
  const int64_t of_a_row = most < kProbeTokens ? std::max<int64_t>(1, most / 16) : kProbeTokens;
  int64_t positions = 0;
  for (size_t i = 0; i < train.size() && positions < most; i += stride) {
    TokenRow row = train[i];
    int64_t learnt = 0;
    size_t end = 1;
    while (end < row.tokens.size() && learnt < of_a_row) learnt += row.loss_mask[end++] == 1;
    if (learnt == 0) continue;
    row.tokens.resize(end);
    row.loss_mask.resize(end);
    positions += most < kProbeTokens ? learnt : static_cast<int64_t>(end);
    probe.push_back(std::move(row));
  }
  return probe;
}

model::Decoder pick_layers(const model::Decoder& target, const std::vector<int64_t>& layers) {
  model::Decoder out = target;
  out.config.num_layers = static_cast<int64_t>(layers.size());
  out.config.layers.clear();
  out.weights.layers.clear();
  for (const int64_t i : layers) {
    out.config.layers.push_back(target.config.layers[static_cast<size_t>(i)]);
    out.weights.layers.push_back(target.weights.layers[static_cast<size_t>(i)]);
  }
  return out;
}

model::Decoder keep_layers(const model::Decoder& target, const std::vector<int64_t>& layers) {
  return model::trainable_copy(pick_layers(target, layers), target.weights.norm.scalar_type());
}

ChosenLayers choose_layers(const std::shared_ptr<const model::Decoder>& target, int64_t keep,
                           std::vector<TokenRow> probe, double temperature, const LayerSearch& limits) {
  const int64_t total = target->config.num_layers;
  if (keep < 1 || keep > total)
    throw Error(ErrorKind::kUsage,
                "--draft prune:" + std::to_string(keep) + ": the target has " + std::to_string(total) + " layers");
  Json record = {{"trials", Json::array()}};
  const SearchPlan plan = plan_search(
      keep, total, static_cast<size_t>(std::min(static_cast<int64_t>(probe.size()), limits.rows)), limits.passes);
  probe.resize(plan.rows);
  ModelTeacher answers(target, probe, INT64_MAX);  // caches the target's logits, so that they are computed only once
  double reached = 1;
  size_t trials = 0;
  const int64_t batch_tokens = std::clamp<int64_t>(limits.batch_tokens, 1, kProbeBatchTokens);
  const auto is_late = [&] { return limits.is_late && trials > 0 && limits.is_late(); };
  // Measures `candidates` and returns the candidate with the highest acceptance, the last one of several equal ones. If
  // the time is over before any is measured, returns the last candidate.
  const auto best_of = [&](const std::vector<Layers>& candidates) {
    size_t best = candidates.size() - 1;
    double most = -1;
    for (size_t i = 0; i < candidates.size() && !is_late(); ++i) {
      const auto step = [&](double share) {
        if (limits.step)
          limits.step((static_cast<double>(trials) + share) / static_cast<double>(std::max<size_t>(1, plan.passes)));
      };
      const double acceptance =
          evaluate(pick_layers(*target, candidates[i]), answers, probe, {temperature, batch_tokens, step}).acceptance;
      record["trials"].push_back({{"layers", candidates[i]}, {"acceptance", acceptance}});
      ++trials;
      if (acceptance >= most) {
        best = i;
        most = reached = acceptance;
      }
    }
    return candidates[best];
  };
  const bool adds = keep * kDeep <= total;
  Layers kept(adds ? 0 : static_cast<size_t>(total));
  std::iota(kept.begin(), kept.end(), int64_t{0});
  for (const size_t count : plan.rounds)
    kept = best_of(spread(adds ? candidates_to_add(kept, total) : candidates_to_remove(kept), count));
  record["kept"] = kept;
  record["acceptance"] = reached;
  record["probe_rows"] = probe.size();
  return {kept, record};
}

DraftInit init_draft(const DraftInitOptions& options, const std::shared_ptr<const model::Decoder>& target,
                     const std::vector<TokenRow>& train) {
  const DraftSpec& spec = options.spec;
  if (const HeadKind* const kind = head_kind(spec)) return init_head(*kind, options, target, train);
  if (spec.kind == "prune") {
    if (!target)
      throw Error(ErrorKind::kUsage, "--draft prune:N takes layers of the target, and --target has no weights here");
    const ChosenLayers chosen = choose_layers(target, spec.layers, probe_rows(train, target->config.vocab_size),
                                              options.temperature, options.search);
    return {keep_layers(*target, chosen.layers), chosen.record, nullptr};
  }
  if (spec.kind == "model") {
    const model::DecoderConfig config = model::load_decoder_config(spec.argument);
    return {model::load_decoder(spec.argument, options.device, model::resolve_dtype(options.dtype, config)), nullptr,
            nullptr};
  }
  const model::DecoderConfig config = with_context("--draft config", [&] {
    return model::parse_decoder_config(read_json(spec.argument, ErrorKind::kModel), spec.argument);
  });
  return {model::random_decoder(config, options.seed, options.device, model::resolve_dtype(options.dtype, config)),
          nullptr, nullptr};
}

}  // namespace specdec::distill
