#include "distill/draft_init.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/error.h"
#include "distill/evaluate.h"

namespace specdec::distill {

namespace {

constexpr int64_t kProbeTokens = 4096, kProbeBatchTokens = 2048;

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

DraftSpec parse_draft_spec(const std::string& text) {
  DraftSpec spec;
  const size_t colon = text.find(':');
  spec.kind = text.substr(0, colon);
  if (colon != std::string::npos) spec.argument = text.substr(colon + 1);
  if (spec.kind == "prune") {
    const char* end = spec.argument.data() + spec.argument.size();
    const auto [stop, error] = std::from_chars(spec.argument.data(), end, spec.layers);
    if (error == std::errc() && stop == end && spec.layers >= 1) return spec;
  } else if ((spec.kind == "model" || spec.kind == "config") && !spec.argument.empty()) {
    return spec;
  }
  throw Error(ErrorKind::kUsage,
              "--draft: expected prune:N (N layers of the target), model:MODEL or config:FILE, found '" + text + "'");
}

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
  std::vector<int64_t> kept(static_cast<size_t>(total));
  std::iota(kept.begin(), kept.end(), int64_t{0});
  search = {{"trials", Json::array()}};
  double reached = 1;
  while (static_cast<int64_t>(kept.size()) > keep) {
    size_t best = 0;
    double best_acceptance = -1;
    // With one layer to keep the ends have no privilege in the last round.
    const bool ends_stay = kept.size() > 2;
    for (size_t i = ends_stay ? 1 : 0; i < kept.size() - (ends_stay ? 1 : 0); ++i) {
      std::vector<int64_t> without = kept;
      without.erase(without.begin() + static_cast<ptrdiff_t>(i));
      const double acceptance = evaluate(keep_layers(target, without), &target, probe, temperature, kProbeBatchTokens).acceptance;
      search["trials"].push_back({{"of", kept}, {"removed", kept[i]}, {"acceptance", acceptance}});
      if (acceptance >= best_acceptance) {
        best = i;
        best_acceptance = acceptance;
      }
    }
    kept.erase(kept.begin() + static_cast<ptrdiff_t>(best));
    reached = best_acceptance;
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
