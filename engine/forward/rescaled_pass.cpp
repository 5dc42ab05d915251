#include "engine/forward/rescaled_pass.h"

#include <algorithm>

#include "engine/config/rope.h"

namespace specdec::model {

namespace {

// A part with explicit positions, and the rope scaling of each row. `wanted` lists the scalings of those rows whose
// results are needed, ascending and without duplicates.
struct RescaledPart {
  SequencePart part;
  std::vector<int64_t> rescales;  // rope scaling of each row
  std::vector<int64_t> wanted;
  bool uniform() const {
    return wanted.size() == 1 && (part.cache->length() == 0 || part.cache->rope_rescale() == wanted.front());
  }
};

// Plans one part. With an observer, the results of all rows are needed, otherwise those of the last num_logits rows. If
// no row is needed (num_logits is 0), the part runs under the scaling of its last row.
RescaledPart plan(const RopeConfig& rope, const SequencePart& part, bool observed) {
  RescaledPart out{part, {}, {}};
  const auto count = static_cast<int64_t>(part.tokens.size());
  for (int64_t i = 0; i < count; ++i) {
    if (part.positions.empty()) out.part.positions.push_back(part.cache->length() + i);
    out.rescales.push_back(rope_rescale(rope, out.part.positions[static_cast<size_t>(i)] + 1));
  }
  const int64_t rows = observed ? count : std::max<int64_t>(1, part.num_logits);
  out.wanted.assign(out.rescales.end() - rows, out.rescales.end());
  std::sort(out.wanted.begin(), out.wanted.end());
  out.wanted.erase(std::unique(out.wanted.begin(), out.wanted.end()), out.wanted.end());
  return out;
}

// Sets the cache's scaling. If the cached tokens have another scaling, recomputes them.
void recompute(const Decoder& decoder, KvCache& cache, int64_t rope_rescale) {
  if (cache.length() != 0 && cache.rope_rescale() != rope_rescale) {
    const std::vector<int32_t> tokens(cache.tokens().begin(), cache.tokens().end());
    const std::vector<int64_t> positions(cache.positions().begin(), cache.positions().end());
    cache.truncate(0);
    cache.set_rope_rescale(rope_rescale);
    cache.record(tokens, positions);
    const SequencePart all{.cache = &cache, .tokens = tokens, .num_logits = 0, .positions = positions};
    one_pass(decoder, std::span(&all, 1), {}, {});
  }
  cache.set_rope_rescale(rope_rescale);
}

// Runs the part alone, once per needed scaling, and takes from each pass the rows whose scaling it used. Appends the
// rows' hidden states after `layers` to `hidden`, which has num_layers + 1 entries or is null. Returns the needed
// logits.
at::Tensor pass_by_rescale(const Decoder& decoder, const RescaledPart& planned, const std::vector<int64_t>& layers,
                           std::vector<at::Tensor>* hidden) {
  SequencePart part = planned.part;
  const auto count = static_cast<int64_t>(part.tokens.size());
  const int64_t before = part.cache->length();
  at::Tensor logits;
  std::vector<at::Tensor> states(hidden ? static_cast<size_t>(decoder.config.num_layers + 1) : 0);
  for (const int64_t rope_rescale : planned.wanted) {
    part.cache->truncate(before);
    recompute(decoder, *part.cache, rope_rescale);
    part.cache->record(part.tokens, part.positions);
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < count; ++i) {
      if (planned.rescales[static_cast<size_t>(i)] == rope_rescale) rows.push_back(i);
    }
    // Copies the rows that need this rope scaling from `from` to `into`. Row 0 of both tensors is row `first` of the
    // part.
    const auto put = [&](at::Tensor& into, const at::Tensor& from, int64_t first) {
      if (!into.defined()) into = at::zeros_like(from);
      for (const int64_t row : rows) {
        if (row >= first) into.select(0, row - first).copy_(from.select(0, row - first));
      }
    };
    HiddenObserver observe;
    if (hidden)
      observe = [&](int64_t layer, const at::Tensor& state) { put(states[static_cast<size_t>(layer)], state, 0); };
    put(logits, one_pass(decoder, std::span(&part, 1), observe, layers), count - part.num_logits);
  }
  for (size_t layer = 0; layer < states.size(); ++layer) {
    at::Tensor& all = (*hidden)[layer];
    all = all.defined() ? at::cat({all, states[layer]}) : states[layer];
  }
  return logits;
}

}  // namespace

at::Tensor rescaled_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer,
                         const std::vector<int64_t>& layers) {
  std::vector<RescaledPart> planned;
  for (const SequencePart& part : parts) planned.push_back(plan(decoder.config.rope, part, observer != nullptr));
  if (std::all_of(planned.begin(), planned.end(), [](const RescaledPart& part) { return part.uniform(); })) {
    for (const RescaledPart& p : planned) {
      p.part.cache->set_rope_rescale(p.wanted.front());
      p.part.cache->record(p.part.tokens, p.part.positions);
    }
    return one_pass(decoder, parts, observer, layers);
  }
  std::vector<at::Tensor> logits, hidden(observer ? static_cast<size_t>(decoder.config.num_layers + 1) : 0);
  for (const RescaledPart& p : planned)
    logits.push_back(pass_by_rescale(decoder, p, layers, observer ? &hidden : nullptr));
  for (size_t layer = 0; layer < hidden.size(); ++layer)
    if (hidden[layer].defined()) observer(static_cast<int64_t>(layer), hidden[layer]);
  return at::cat(logits);
}

}  // namespace specdec::model
