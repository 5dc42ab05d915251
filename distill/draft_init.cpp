#include "distill/draft_init.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "distill/evaluate.h"

namespace specdec::distill {

namespace {

constexpr int64_t kProbeTokens = 4096, kProbeBatchTokens = 2048;
// Targets at least this many times deeper than the draft: layers are added one by one instead of removed, which costs
// keep × total passes of shallow models instead of total² / 2 of deep ones.
constexpr int64_t kDeep = 4;

// Rows spread over the training set, about kProbeTokens of them: held-out rows are not touched by any choice of this stage.
std::vector<TokenRow> probe_rows(const std::vector<TokenRow>& train) {
  std::vector<TokenRow> probe;
  int64_t tokens = 0;
  const size_t wanted = 64, stride = std::max<size_t>(1, train.size() / wanted);
  for (size_t i = 0; i < train.size() && tokens < kProbeTokens; i += stride) {
    probe.push_back(train[i]);
    tokens += static_cast<int64_t>(train[i].tokens.size());
  }
  return probe;
}

}  // namespace

model::Decoder keep_layers(const model::Decoder& target, const std::vector<int64_t>& layers) {
  model::Decoder out = target;
  out.config.num_layers = static_cast<int64_t>(layers.size());
  out.config.layers.clear();
  out.weights.layers.clear();
  for (const int64_t i : layers) {
    out.config.layers.push_back(target.config.layers[static_cast<size_t>(i)]);
    out.weights.layers.push_back(target.weights.layers[static_cast<size_t>(i)]);
  }
  out.weights.visit(out.config, [](const std::string&, at::Tensor& t) { t = t.detach().clone(); });
  if (out.config.tie_embeddings) out.weights.lm_head = out.weights.embed;
  return out;
}

std::vector<int64_t> choose_layers(const model::Decoder& target, int64_t keep, const std::vector<TokenRow>& probe,
                                   double temperature, Json& search) {
  const int64_t total = target.config.num_layers;
  if (keep < 1 || keep > total)
    throw Error(ErrorKind::kUsage,
                "--draft prune:" + std::to_string(keep) + ": the target has " + std::to_string(total) + " layers");
  search = {{"trials", Json::array()}};
  double reached = 1;
  // The best of `candidates`, each measured; ties go to the last.
  const auto best_of = [&](const std::vector<std::vector<int64_t>>& candidates) {
    size_t best = 0;
    reached = -1;
    for (size_t i = 0; i < candidates.size(); ++i) {
      const double acceptance =
          evaluate(keep_layers(target, candidates[i]), &target, probe, temperature, kProbeBatchTokens).acceptance;
      search["trials"].push_back({{"layers", candidates[i]}, {"acceptance", acceptance}});
      if (acceptance >= reached) {
        best = i;
        reached = acceptance;
      }
    }
    return candidates[best];
  };
  std::vector<int64_t> kept;
  std::vector<std::vector<int64_t>> candidates;
  if (keep * kDeep <= total) {
    while (static_cast<int64_t>(kept.size()) < keep) {
      candidates.clear();
      for (int64_t layer = total - 1; layer >= 0; --layer) {
        if (std::find(kept.begin(), kept.end(), layer) != kept.end()) continue;
        candidates.push_back(kept);
        candidates.back().insert(std::upper_bound(candidates.back().begin(), candidates.back().end(), layer), layer);
      }
      kept = best_of(candidates);
    }
  } else {
    kept.resize(static_cast<size_t>(total));
    std::iota(kept.begin(), kept.end(), int64_t{0});
    while (static_cast<int64_t>(kept.size()) > keep) {
      candidates.clear();
      // With one layer to keep the ends have no privilege in the last round.
      const size_t ends = kept.size() > 2 ? 1 : 0;
      for (size_t i = ends; i < kept.size() - ends; ++i) {
        candidates.push_back(kept);
        candidates.back().erase(candidates.back().begin() + static_cast<ptrdiff_t>(i));
      }
      kept = best_of(candidates);
    }
  }
  search["kept"] = kept;
  search["acceptance"] = reached;
  search["probe_rows"] = probe.size();
  return kept;
}

DraftInit init_draft(const DraftInitOptions& options, const model::Decoder* target, const std::vector<TokenRow>& train) {
  const DraftSpec& spec = options.spec;
  if (spec.kind == "prune") {
    if (!target) throw Error(ErrorKind::kUsage, "--draft prune:N takes layers of the target, and --target has no weights here");
    DraftInit out{{}, nullptr};
    out.decoder = keep_layers(*target, choose_layers(*target, spec.layers, probe_rows(train), options.temperature, out.search));
    return out;
  }
  if (spec.kind == "model") {
    const model::DecoderConfig config = model::load_decoder_config(spec.argument);
    return {model::load_decoder(spec.argument, options.device, model::resolve_dtype(options.dtype, config)), nullptr};
  }
  const model::DecoderConfig config = with_context(
      "--draft config", [&] { return model::parse_decoder_config(read_json(spec.argument, ErrorKind::kConfig), spec.argument); });
  return {model::random_decoder(config, options.seed, options.device, model::resolve_dtype(options.dtype, config)), nullptr};
}

}  // namespace specdec::distill
