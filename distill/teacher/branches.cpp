#include "distill/teacher/branches.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/philox.h"
#include "distill/teacher/head_loss.h"
#include "engine/kernels/ops.h"
#include "engine/weights/draft_vocab.h"

namespace specdec::distill {

namespace {

// Mixed into the seed, so that these random numbers are independent of those of the batcher, which has the same seed.
constexpr uint64_t kBranchSeed = 0x6f6e2d706f6c6963;

// Returns the positions t of a row at which a roll-out of the draft can start (anchors): token t + 1 has loss_mask 1,
// and `length` tokens fit after position t.
std::vector<int64_t> possible_anchors(const TokenRow& row, int64_t length, int64_t max_position) {
  std::vector<int64_t> out;
  for (int64_t t = 0; t + 1 < static_cast<int64_t>(row.tokens.size()) && t + length <= max_position; ++t)
    if (row.loss_mask[static_cast<size_t>(t) + 1] == 1) out.push_back(t);
  return out;
}

int64_t share_of_positions(size_t positions, double share) {
  return static_cast<int64_t>(std::ceil(share * static_cast<double>(positions)));
}

// The positions of a batch at which roll-outs of the draft start (anchors), and random numbers to sample their tokens.
struct Anchors {
  std::vector<std::vector<int64_t>> at;  // anchor positions of each row, ascending
  int64_t width = 0;                     // A, the largest number of roll-outs in a row
  at::Tensor position;              // start of each roll-out [B, A] int64; repeated if a row has fewer than A (0: none)
  at::Tensor counts;                // [B, A] bool: false for repeated starts
  std::vector<at::Tensor> uniform;  // random in [0, 1) to sample tokens: [B, A] fp64 per draft position
};
Anchors choose_anchors(const OnPolicyOptions& options, const BranchSource& source, int64_t max_position) {
  const auto& [rows, batch, step, temperatures] = source;
  const size_t count = batch.row_index.size();
  Anchors out;
  out.at.resize(count);
  std::vector<PhiloxStream> random;
  for (size_t b = 0; b < count; ++b) {
    const size_t row = batch.row_index[b];
    random.emplace_back(options.seed ^ kBranchSeed, (static_cast<uint64_t>(step) << 32) + row);
    std::vector<int64_t> places = possible_anchors(rows[row], options.length, max_position);
    const auto wanted = static_cast<size_t>(share_of_positions(places.size(), options.share));
    for (size_t i = 0; i < wanted; ++i) std::swap(places[i], places[i + random[b].below(places.size() - i)]);
    places.resize(wanted);
    std::sort(places.begin(), places.end());
    out.at[b] = std::move(places);
    out.width = std::max(out.width, static_cast<int64_t>(wanted));
  }
  const auto height = static_cast<int64_t>(count);
  out.position = at::zeros({height, out.width}, at::kLong);
  out.counts = at::zeros({height, out.width}, at::kBool);
  for (int64_t j = 1; j < options.length; ++j) out.uniform.push_back(at::zeros({height, out.width}, at::kDouble));
  for (size_t b = 0; b < count; ++b) {
    const size_t begin = b * static_cast<size_t>(out.width);
    for (size_t a = 0; a < static_cast<size_t>(out.width); ++a) {
      const bool counts = a < out.at[b].size();
      out.position.mutable_data_ptr<int64_t>()[begin + a] = counts              ? out.at[b][a]
                                                            : out.at[b].empty() ? 0
                                                                                : out.at[b].back();
      out.counts.mutable_data_ptr<bool>()[begin + a] = counts;
      for (at::Tensor& depth : out.uniform)
        depth.mutable_data_ptr<double>()[begin + a] = counts ? random[b].uniform() : 0;
    }
  }
  return out;
}

// Samples a token for each row of `hidden` [B, A, E] from the draft's distribution at temperatures [B]. Returns [B, A]
// int64.
at::Tensor draw(const model::Decoder& draft, const at::Tensor& hidden, const at::Tensor& temperatures,
                const at::Tensor& uniform) {
  at::NoGradGuard guard;
  const at::Tensor rows = hidden.detach().flatten(0, 1), u = uniform.flatten().to(rows.device());
  const at::Tensor inverse = temperatures.reciprocal()
                                 .to(rows.device())
                                 .unsqueeze(1)
                                 .expand({hidden.size(0), hidden.size(1)})
                                 .reshape({-1, 1});
  const std::vector<int32_t>& kept = draft.config.draft_vocab;
  const int64_t count = rows.size(0), most = head_loss_rows(draft.config.vocab_size);
  const at::Tensor out = at::empty({count}, rows.options().dtype(at::kLong));
  for (int64_t begin = 0; begin < count; begin += most) {
    const int64_t end = std::min(count, begin + most);
    const at::Tensor logits = model::head_logits(draft, rows.slice(0, begin, end)).to(at::kFloat);
    const at::Tensor sums = at::softmax(logits * inverse.slice(0, begin, end), -1).cumsum(-1, at::kDouble);
    const at::Tensor wanted = u.slice(0, begin, end).unsqueeze(1) * sums.narrow(1, sums.size(1) - 1, 1);
    const at::Tensor drawn = at::searchsorted(sums, wanted, /*out_int32=*/false, /*right=*/true);
    out.slice(0, begin, end).copy_(drawn.squeeze(1).clamp_max(sums.size(1) - 1));
  }
  const at::Tensor ids = kept.empty() ? out : model::draft_vocab_index(kept, out.device()).index_select(0, out);
  return ids.view({hidden.size(0), hidden.size(1)});
}

// Returns for each token whether it is an EOS token; bool, shaped like `tokens`.
at::Tensor ends(const model::DecoderConfig& config, const at::Tensor& tokens) {
  at::Tensor out = at::zeros_like(tokens, at::kBool);
  for (const int32_t eos : config.eos_ids) out = out.logical_or(tokens.eq(eos));
  return out;
}

// Returns the attention mask of the tokens that the draft generated as number `depth` - 1 after each anchor (start of a
// roll-out), [B, A, S + (depth - 1) · A] bool. A token sees the text up to its anchor and the tokens of its own
// roll-out.
at::Tensor seen(const at::Tensor& position, int64_t length, int64_t depth) {
  const int64_t width = position.size(1);
  const at::Tensor text = at::arange(length, position.options()).le(position.unsqueeze(2));
  const at::Tensor own =
      at::eye(width, position.options().dtype(at::kBool)).unsqueeze(0).expand({position.size(0), width, width});
  std::vector<at::Tensor> parts = {text};
  for (int64_t i = 1; i < depth; ++i) parts.push_back(own);
  return at::cat(parts, 2);
}

}  // namespace

std::vector<double> depth_weights(const std::vector<double>& acceptance) {
  const size_t count = acceptance.size();
  std::vector<double> out(count, 0);
  double sum = 0;
  for (size_t j = 0; j < count; ++j) {
    double product = 1;
    for (size_t m = 0; m < count; ++m) {
      if (m != j) product *= acceptance[m];
      if (m >= j) out[j] += product;
    }
    sum += out[j];
  }
  for (double& w : out) w /= sum;
  return out;
}

int64_t anchor_count(const TokenRow& row, const OnPolicyOptions& options, int64_t max_position) {
  return share_of_positions(possible_anchors(row, options.length, max_position).size(), options.share);
}

DraftedBranches draft_branches(const OnPolicyOptions& options, const BranchSource& source, const model::Decoder& draft,
                               model::TrainPass& pass) {
  const Batch& batch = source.batch;
  const Anchors anchors = choose_anchors(options, source, draft.config.max_position);
  DraftedBranches out;
  if (anchors.width == 0) return out;
  const at::Device device = pass.hidden().device();
  const int64_t size = pass.hidden().size(2), length = batch.tokens.size(1), height = batch.tokens.size(0);
  const at::Tensor place = anchors.position.to(device);
  at::Tensor counts = anchors.counts.to(device);
  at::Tensor hidden = pass.hidden().gather(1, place.unsqueeze(2).expand({height, anchors.width, size}));
  std::vector<at::Tensor> positions, allowed;
  for (int64_t j = 2; j <= options.length; ++j) {
    const at::Tensor tokens = draw(draft, hidden, source.temperatures, anchors.uniform[static_cast<size_t>(j - 2)]);
    counts = counts.logical_and(ends(draft.config, tokens).logical_not());
    out.tokens.push_back(tokens);
    out.embedded.push_back(kernels::embedding(draft.weights.embed.detach(), tokens).requires_grad_(true));
    positions.push_back(place + (j - 1));
    allowed.push_back(seen(place, length, j));
    hidden =
        pass.extend({.tokens = tokens, .positions = positions.back(), .embedded = out.embedded.back()}, allowed.back());
    const at::Tensor here = counts.flatten().nonzero().squeeze(1);
    out.hidden.push_back(hidden.flatten(0, 1).index_select(0, here));
    // `here` indexes the rows at depth (draft position) j, in the order [B, A]. branches.rows must index the rows at
    // all depths, in the order [B, K - 1, A], so the indices are converted.
    const int64_t all = (options.length - 1) * anchors.width;
    out.branches.rows.push_back(at::div(here, anchors.width, "floor") * all + (j - 2) * anchors.width +
                                at::remainder(here, anchors.width));
  }
  out.branches.tokens = at::cat(out.tokens, 1);
  out.branches.positions = at::cat(positions, 1);
  const int64_t keys = length + (options.length - 1) * anchors.width;
  for (at::Tensor& mask : allowed) mask = at::constant_pad_nd(mask, {0, keys - mask.size(2)});
  out.branches.allowed = at::cat(allowed, 1);
  return out;
}

at::Tensor branched_hidden(const model::Decoder& decoder, const Batch& batch, const Branches& branches) {
  at::NoGradGuard guard;
  const at::Device device = decoder.weights.embed.device();
  model::TrainPass pass(decoder, {.tokens = batch.tokens.to(device)});
  std::vector<at::Tensor> out = {pass.hidden().flatten(0, 1).index_select(0, batch.rows.to(device))};
  const at::Tensor after = pass.extend(
      {.tokens = branches.tokens.to(device), .positions = branches.positions.to(device)}, branches.allowed.to(device));
  for (const at::Tensor& rows : branches.rows) out.push_back(after.flatten(0, 1).index_select(0, rows.to(device)));
  return at::cat(out);
}

}  // namespace specdec::distill
